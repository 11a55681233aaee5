//! The clients, where each keeps its servers, and in which shape. What comes first wins.

use super::places::Base::{self, Applications, Config, Directory, File, Home, Project};
use super::shapes::Shape;
use crate::syntax::Syntax;
use crate::syntax::Syntax::{Json, Toml, Yaml};

/// A program whose servers can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// As one names it on the command line.
    pub id: &'static str,
    pub title: &'static str,
    pub(super) locations: &'static [Location],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) base: Base,
    pub(super) pattern: &'static str,
    pub(super) syntax: Syntax,
    pub(super) shape: Shape,
}

const fn at(base: Base, pattern: &'static str, syntax: Syntax, shape: Shape) -> Location {
    Location { base, pattern, syntax, shape }
}

/// What most clients have.
const USUAL: Shape = Shape::Table(&["mcpServers"]);
const VSCODE: Shape = Shape::Table(&["servers"]);
const VSCODE_SETTINGS: Shape = Shape::Table(&["mcp", "servers"]);

pub const CLIENTS: &[Client] = &[
    Client {
        id: "claude-desktop",
        title: "Claude Desktop",
        locations: &[at(Applications, "Claude/claude_desktop_config.json", Json, USUAL)],
    },
    Client {
        id: "claude-code",
        title: "Claude Code",
        locations: &[
            at(Directory("CLAUDE_CONFIG_DIR", ""), ".claude.json", Json, Shape::ClaudeCode),
            at(Project, ".mcp.json", Json, USUAL),
        ],
    },
    Client {
        id: "cursor",
        title: "Cursor",
        locations: &[at(Home, ".cursor/mcp.json", Json, USUAL), at(Project, ".cursor/mcp.json", Json, USUAL)],
    },
    Client {
        id: "windsurf",
        title: "Windsurf",
        locations: &[
            at(Home, ".codeium/windsurf/mcp_config.json", Json, USUAL),
            at(Home, ".codeium/mcp_config.json", Json, USUAL),
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
            at(File("OPENCODE_CONFIG"), "", Json, Shape::OpenCode),
            at(Config, "opencode/opencode.json", Json, Shape::OpenCode),
            at(Config, "opencode/opencode.jsonc", Json, Shape::OpenCode),
            at(Project, "opencode.json", Json, Shape::OpenCode),
            at(Project, "opencode.jsonc", Json, Shape::OpenCode),
        ],
    },
    Client {
        id: "gemini-cli",
        title: "Gemini CLI",
        locations: &[
            at(Home, ".gemini/settings.json", Json, Shape::Dollars),
            at(Project, ".gemini/settings.json", Json, Shape::Dollars),
        ],
    },
    Client {
        id: "codex",
        title: "Codex",
        locations: &[
            at(Directory("CODEX_HOME", ".codex"), "config.toml", Toml, Shape::Codex),
            at(Project, ".codex/config.toml", Toml, Shape::Codex),
        ],
    },
    Client {
        id: "antigravity",
        title: "Antigravity",
        locations: &[
            at(Home, ".gemini/config/mcp_config.json", Json, USUAL),
            at(Home, ".gemini/antigravity/mcp_config.json", Json, USUAL),
            at(Home, ".gemini/antigravity-cli/mcp_config.json", Json, USUAL),
            at(Project, ".agents/mcp_config.json", Json, USUAL),
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
                USUAL,
            ),
            at(File("CLINE_MCP_SETTINGS_PATH"), "", Json, USUAL),
            at(Home, ".cline/data/settings/cline_mcp_settings.json", Json, USUAL),
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
                USUAL,
            ),
            at(Project, ".roo/mcp.json", Json, USUAL),
        ],
    },
    Client {
        id: "zed",
        title: "Zed",
        locations: &[
            at(Config, "zed/settings.json", Json, Shape::Zed),
            at(Project, ".zed/settings.json", Json, Shape::Zed),
        ],
    },
    Client { id: "goose", title: "Goose", locations: &[at(Config, "goose/config.yaml", Yaml, Shape::Goose)] },
    Client {
        id: "amp",
        title: "Amp",
        locations: &[
            at(Config, "amp/settings.json", Json, Shape::Table(&["amp.mcpServers"])),
            at(Config, "amp/settings.jsonc", Json, Shape::Table(&["amp.mcpServers"])),
            at(Project, ".amp/settings.json", Json, Shape::Table(&["amp.mcpServers"])),
            at(Project, ".amp/settings.jsonc", Json, Shape::Table(&["amp.mcpServers"])),
        ],
    },
    Client {
        id: "kiro",
        title: "Kiro",
        locations: &[
            at(Home, ".kiro/settings/mcp.json", Json, USUAL),
            at(Project, ".kiro/settings/mcp.json", Json, USUAL),
        ],
    },
    Client { id: "lm-studio", title: "LM Studio", locations: &[at(Home, ".lmstudio/mcp.json", Json, USUAL)] },
    Client {
        id: "trae",
        title: "Trae",
        locations: &[
            at(Applications, "Trae/User/mcp.json", Json, USUAL),
            at(Applications, "Trae CN/User/mcp.json", Json, USUAL),
            at(Project, ".trae/mcp.json", Json, USUAL),
        ],
    },
    Client {
        id: "continue",
        title: "Continue",
        locations: &[
            at(Home, ".continue/config.yaml", Yaml, Shape::Continue),
            at(Home, ".continue/config.json", Json, Shape::Continue),
            at(Home, ".continue/mcpServers/*.yaml", Yaml, Shape::Continue),
            at(Home, ".continue/mcpServers/*.json", Json, Shape::Loose),
            at(Project, ".continue/mcpServers/*.yaml", Yaml, Shape::Continue),
            at(Project, ".continue/mcpServers/*.json", Json, Shape::Loose),
        ],
    },
    Client {
        id: "copilot-cli",
        title: "Copilot CLI",
        locations: &[
            at(Directory("COPILOT_HOME", ".copilot"), "mcp-config.json", Json, Shape::Dollars),
            at(Project, ".github/mcp.json", Json, Shape::Dollars),
        ],
    },
    Client {
        id: "directories",
        title: "Directories of servers",
        locations: &[
            at(Home, "MCPs/*.json", Json, Shape::Own),
            at(Config, "mcp/servers/*.json", Json, Shape::Own),
            at(Project, "mcp-servers/*.json", Json, Shape::Own),
        ],
    },
    Client {
        id: "variable",
        title: "MCP_SERVERS_CONFIG",
        locations: &[at(File("MCP_SERVERS_CONFIG"), "", Json, Shape::Own)],
    },
];
