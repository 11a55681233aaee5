//! The functions of a Python file, each as a standalone module: with the statements of the file that it uses.
//!
//! Which names a statement uses and binds is estimated from its words: a module may contain more than its function needs,
//! but not less. The statements are not changed, except that decorators that save a function are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::{InvalidSource, Statement, Token, statements};

/// Maximum number of functions of a file.
const MAX_FUNCTIONS: usize = 200;

/// Decorators that save a function.
const SAVERS: [&str; 3] = ["@save_tool", "@runtime.save_tool", "@mcp.runtime.save_tool"];

/// Words before a name that is bound in a function.
const BINDING_WORDS: [&str; 4] = ["as", "for", "import", "def"];

/// First words of statements that bind names in their blocks or without an `=`.
const COMPOUND_WORDS: [&str; 8] = ["import", "from", "if", "try", "for", "while", "with", "match"];

/// Words that are never names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// A function that can be saved.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) doc: String,
}

/// A file whose functions cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InvalidFile {
    Source(InvalidSource),
    TooManyFunctions { max: usize },
}

/// The statements of a file, and which of them bind a name.
pub(super) struct PythonFile<'a> {
    statements: Vec<Statement<'a>>,
    bindings: BTreeMap<&'a str, Vec<usize>>,
    /// The index of the last definition of each function, by name.
    functions: BTreeMap<&'a str, usize>,
}

impl<'a> PythonFile<'a> {
    pub(super) fn parse(source: &'a str) -> Result<Self, InvalidFile> {
        let statements = statements(source).map_err(InvalidFile::Source)?;
        let mut file = Self { statements: Vec::new(), bindings: BTreeMap::new(), functions: BTreeMap::new() };
        for (index, statement) in statements.iter().enumerate() {
            if let Some(name) = defined_name(&statement.tokens, "def") {
                file.functions.insert(name, index);
                // A later definition replaces earlier ones.
                file.bindings.insert(name, vec![index]);
            } else {
                for name in bound_names(&statement.tokens) {
                    file.bindings.entry(name).or_default().push(index);
                }
            }
        }
        file.statements = statements;
        if file.functions.len() > MAX_FUNCTIONS {
            return Err(InvalidFile::TooManyFunctions { max: MAX_FUNCTIONS });
        }
        Ok(file)
    }

    /// The functions whose names can be those of saved tools. The others are helpers.
    pub(super) fn functions(&self) -> impl Iterator<Item = Function> {
        let public = self.functions.iter().filter(|(name, _)| !name.starts_with('_'));
        public.map(|(name, index)| Function {
            name: (*name).to_owned(),
            source: self.module_of(*index),
            doc: docstring(&self.statements[*index].tokens),
        })
    }

    /// Returns a function with all statements that it uses, directly or not, in the order of the file.
    fn module_of(&self, function: usize) -> String {
        let is_future_at = |index: &usize| is_future(self.statements[*index].text);
        let mut needed: BTreeSet<usize> = (0..function).filter(is_future_at).collect();
        let mut pending = vec![function];
        let mut helpers = BTreeSet::new();
        while let Some(index) = pending.pop() {
            if !needed.insert(index) {
                continue;
            }
            let tokens = &self.statements[index].tokens;
            for name in names(tokens) {
                match self.bindings.get(name) {
                    Some(bindings) => pending.extend(bindings),
                    None => helpers.extend(helper_import(name, tokens)),
                }
            }
        }
        let texts = needed.iter().map(|index| without_savers(self.statements[*index].text));
        let (mut lines, rest): (Vec<String>, Vec<String>) = texts.partition(|text| is_future(text));
        lines.extend(helpers);
        let head = lines.join("\n");
        let blocks: Vec<String> = Some(head).filter(|head| !head.is_empty()).into_iter().chain(rest).collect();
        blocks.join("\n\n") + "\n"
    }
}

/// Whether a statement changes how the file is compiled. Python accepts it only before all others.
fn is_future(text: &str) -> bool {
    text.starts_with("from __future__")
}

fn names<'a>(tokens: &[Token<'a>]) -> impl Iterator<Item = &'a str> {
    tokens.iter().filter_map(|token| match token {
        Token::Name(name) if !KEYWORDS.contains(name) => Some(*name),
        _ => None,
    })
}

/// Returns the name after `def` or `class`, if a statement is such a definition.
fn defined_name<'a>(tokens: &[Token<'a>], keyword: &str) -> Option<&'a str> {
    let is_definition = match tokens.first()? {
        Token::Name(word) => *word == keyword || (*word == "async" && keyword == "def"),
        token => *token == Token::Symbol('@'),
    };
    let words = ["def", "class"];
    // The first of these words is the definition: a decorator cannot contain them.
    let at = tokens.iter().position(|token| matches!(token, Token::Name(word) if words.contains(word)))?;
    match (&tokens[at], tokens.get(at + 1)?) {
        (Token::Name(word), Token::Name(name)) if is_definition && *word == keyword => Some(name),
        _ => None,
    }
}

/// Returns the names that a statement other than a function may bind.
fn bound_names<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    if let Some(name) = defined_name(tokens, "class") {
        return vec![name];
    }
    let binds_anywhere = match tokens.first() {
        Some(Token::Name("async")) => true,
        Some(Token::Name(word)) => COMPOUND_WORDS.contains(word),
        _ => false,
    };
    let end =
        if binds_anywhere { Some(tokens.len()) } else { tokens.iter().rposition(|token| *token == Token::Assign) };
    names(&tokens[..end.unwrap_or(0)]).collect()
}

/// Returns the import of a helper of code mode that a function uses as a global name.
fn helper_import(name: &str, tokens: &[Token<'_>]) -> Option<String> {
    if name == "mcp_servers" || name == "LOADED_MCP_SERVERS" {
        return Some(format!("from mcp.runtime import {name}"));
    }
    let alias = name.strip_prefix("mcp_").filter(|alias| !alias.is_empty())?;
    let header = tokens.iter().position(|token| *token == Token::Symbol(':')).unwrap_or(0);
    let is_name = |token: &Token<'_>| *token == Token::Name(name);
    let is_bound = |(index, token): (usize, &Token<'_>)| {
        let is_parameter = index < header;
        let is_assigned = tokens.get(index + 1) == Some(&Token::Assign);
        let is_declared = index > 0 && matches!(tokens[index - 1], Token::Name(word) if BINDING_WORDS.contains(&word));
        is_name(token) && (is_parameter || is_assigned || is_declared)
    };
    let is_called = tokens.windows(2).any(|pair| is_name(&pair[0]) && pair[1] == Token::Symbol('.'));
    let is_local = tokens.iter().enumerate().any(is_bound);
    (is_called && !is_local).then(|| format!("from mcp.servers import {alias} as {name}"))
}

fn without_savers(text: &str) -> String {
    let is_saver = |line: &&str| SAVERS.contains(&line.split('#').next().unwrap_or_default().trim_end());
    text.lines().filter(|line| !is_saver(line)).collect::<Vec<_>>().join("\n")
}

/// Returns the docstring of a function, without its common indentation.
fn docstring(tokens: &[Token<'_>]) -> String {
    let mut depth = 0_usize;
    let definition = tokens.iter().position(|token| *token == Token::Name("def")).unwrap_or(0);
    let header_end = tokens[definition..].iter().position(|token| {
        match token {
            Token::Symbol('(' | '[' | '{') => depth += 1,
            Token::Symbol(')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == Token::Symbol(':')
    });
    let first = header_end.and_then(|end| tokens.get(definition + end + 1));
    let Some(Token::Text(literal)) = first else { return String::new() };
    let Some(at) = literal.find(['"', '\'']) else { return String::new() };
    let (prefix, quoted) = literal.split_at(at);
    if !["", "r", "R", "u", "U"].contains(&prefix) {
        return String::new();
    }
    let quotes = if quoted.starts_with("\"\"\"") || quoted.starts_with("'''") { 3 } else { 1 };
    let text = quoted.get(quotes..quoted.len().saturating_sub(quotes)).unwrap_or_default();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let margin = text.lines().skip(1).filter(|line| !line.trim().is_empty()).map(indent).min().unwrap_or(0);
    let mut lines: Vec<&str> = text.lines().take(1).map(str::trim_start).collect();
    lines.extend(text.lines().skip(1).map(|line| line.get(margin..).unwrap_or_default().trim_end()));
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests;
