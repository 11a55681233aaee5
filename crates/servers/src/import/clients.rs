//! The supported clients, with the locations and formats of their files, in order of precedence.

use super::formats::Format;
use super::locations::Base::{self, Applications, Config, Directory, File, Home, Project};
use crate::syntax::Syntax;
use crate::syntax::Syntax::{Json, Toml, Yaml};

/// An MCP client whose servers can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The name on the command line.
    pub id: &'static str,
    pub title: &'static str,
    pub(super) locations: &'static [Location],
}

/// The files of a client at one location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) base: Base,
    pub(super) pattern: &'static str,
    pub(super) syntax: Syntax,
    pub(super) format: Format,
}

const fn at(base: Base, pattern: &'static str, syntax: Syntax, format: Format) -> Location {
    Location { base, pattern, syntax, format }
}

/// The format of most clients.
const MCP_SERVERS: Format = Format::Table(&["mcpServers"]);
const VSCODE: Format = Format::Table(&["servers"]);
const VSCODE_SETTINGS: Format = Format::Table(&["mcp", "servers"]);

/// The files whose servers are known without an import.
pub(super) const DISCOVERED: Location = at(Home, "MCPs/*.json", Json, Format::Ringfence);

pub const CLIENTS: &[Client] = &[
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        locations: &[at(Applications, "Claude/claude_desktop_config.json", Json, MCP_SERVERS)],
    },
    Client {
        id: "claude-code",
        title: "Claude Code",
        locations: &[
            at(Directory("CLAUDE_CONFIG_DIR", ""), ".claude.json", Json, Format::ClaudeCode),
            at(Project, ".mcp.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "cursor",
        title: "Cursor",
        locations: &[
            at(Home, ".cursor/mcp.json", Json, MCP_SERVERS),
            at(Project, ".cursor/mcp.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        locations: &[
            at(Home, ".codeium/windsurf/mcp_config.json", Json, MCP_SERVERS),
            at(Home, ".codeium/mcp_config.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "vscode",
        title: "VS Code",
        locations: &[
            at(Applications, "Code/User/mcp.json", Json, VSCODE),
            at(Applications, "Code/User/profiles/*/mcp.json", Json, VSCODE),
            at(Applications, "Code/User/settings.json", Json, VSCODE_SETTINGS),
            at(Applications, "Code - Insiders/User/mcp.json", Json, VSCODE),
            at(Applications, "Code - Insiders/User/settings.json", Json, VSCODE_SETTINGS),
            at(Home, ".vscode-server/data/User/mcp.json", Json, VSCODE),
            at(Project, ".vscode/mcp.json", Json, VSCODE),
        ],
    },
    Client {
        id: "opencode",
        title: "OpenCode",
        locations: &[
            at(File("OPENCODE_CONFIG"), "", Json, Format::OpenCode),
            at(Config, "opencode/opencode.json", Json, Format::OpenCode),
            at(Config, "opencode/opencode.jsonc", Json, Format::OpenCode),
            at(Project, "opencode.json", Json, Format::OpenCode),
            at(Project, "opencode.jsonc", Json, Format::OpenCode),
        ],
    },
    Client {
        id: "gemini-cli",
        title: "Gemini CLI",
        locations: &[
            at(Home, ".gemini/settings.json", Json, Format::DollarVariables),
            at(Project, ".gemini/settings.json", Json, Format::DollarVariables),
        ],
    },
    Client {
        id: "codex",
        title: "Codex",
        locations: &[
            at(Directory("CODEX_HOME", ".codex"), "config.toml", Toml, Format::Codex),
            at(Project, ".codex/config.toml", Toml, Format::Codex),
        ],
    },
    Client {
        id: "antigravity",
        title: "Antigravity",
        locations: &[
            at(Home, ".gemini/config/mcp_config.json", Json, MCP_SERVERS),
            at(Home, ".gemini/antigravity/mcp_config.json", Json, MCP_SERVERS),
            at(Home, ".gemini/antigravity-cli/mcp_config.json", Json, MCP_SERVERS),
            at(Project, ".agents/mcp_config.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "cline",
        title: "Cline",
        locations: &[
            at(
                Applications,
                "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                Json,
                MCP_SERVERS,
            ),
            at(File("CLINE_MCP_SETTINGS_PATH"), "", Json, MCP_SERVERS),
            at(Home, ".cline/data/settings/cline_mcp_settings.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "roo",
        title: "Roo Code",
        locations: &[
            at(
                Applications,
                "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
                Json,
                MCP_SERVERS,
            ),
            at(Project, ".roo/mcp.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "zed",
        title: "Zed",
        locations: &[
            at(Config, "zed/settings.json", Json, Format::Zed),
            at(Project, ".zed/settings.json", Json, Format::Zed),
        ],
    },
    Client { id: "goose", title: "Goose", locations: &[at(Config, "goose/config.yaml", Yaml, Format::Goose)] },
    Client {
        id: "amp",
        title: "Amp",
        locations: &[
            at(Config, "amp/settings.json", Json, Format::Table(&["amp.mcpServers"])),
            at(Config, "amp/settings.jsonc", Json, Format::Table(&["amp.mcpServers"])),
            at(Project, ".amp/settings.json", Json, Format::Table(&["amp.mcpServers"])),
            at(Project, ".amp/settings.jsonc", Json, Format::Table(&["amp.mcpServers"])),
        ],
    },
    Client {
        id: "kiro",
        title: "Kiro",
        locations: &[
            at(Home, ".kiro/settings/mcp.json", Json, MCP_SERVERS),
            at(Project, ".kiro/settings/mcp.json", Json, MCP_SERVERS),
        ],
    },
    Client { id: "lm-studio", title: "LM Studio", locations: &[at(Home, ".lmstudio/mcp.json", Json, MCP_SERVERS)] },
    Client {
        id: "trae",
        title: "Trae",
        locations: &[
            at(Applications, "Trae/User/mcp.json", Json, MCP_SERVERS),
            at(Applications, "Trae CN/User/mcp.json", Json, MCP_SERVERS),
            at(Project, ".trae/mcp.json", Json, MCP_SERVERS),
        ],
    },
    Client {
        id: "continue",
        title: "Continue",
        locations: &[
            at(Home, ".continue/config.yaml", Yaml, Format::Continue),
            at(Home, ".continue/config.json", Json, Format::Continue),
            at(Home, ".continue/mcpServers/*.yaml", Yaml, Format::Continue),
            at(Home, ".continue/mcpServers/*.json", Json, Format::AnyTable),
            at(Project, ".continue/mcpServers/*.yaml", Yaml, Format::Continue),
            at(Project, ".continue/mcpServers/*.json", Json, Format::AnyTable),
        ],
    },
    Client {
        id: "copilot-cli",
        title: "Copilot CLI",
        locations: &[
            at(Directory("COPILOT_HOME", ".copilot"), "mcp-config.json", Json, Format::DollarVariables),
            at(Project, ".github/mcp.json", Json, Format::DollarVariables),
        ],
    },
    Client {
        id: "directories",
        title: "Directories of servers",
        locations: &[
            DISCOVERED,
            at(Config, "mcp/servers/*.json", Json, Format::Ringfence),
            at(Project, "mcp-servers/*.json", Json, Format::Ringfence),
        ],
    },
    Client {
        id: "variable",
        title: "MCP_SERVERS_CONFIG",
        locations: &[at(File("MCP_SERVERS_CONFIG"), "", Json, Format::Ringfence)],
    },
];
