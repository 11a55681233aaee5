//! Splits a Python file into its statements at the top level, without executing or fully parsing it.
//!
//! Only what decides where statements and strings end is recognized: brackets, strings with their prefixes, comments,
//! continued lines and indentation. Python itself reports every other error when a tool is loaded.

use std::ops::Range;

/// Maximum nesting of strings in the expressions of f-strings.
const MAX_NESTING: usize = 16;

/// Prefixes of strings, in lower case.
const PREFIXES: [&str; 11] = ["r", "u", "b", "f", "t", "br", "rb", "fr", "rf", "tr", "rt"];

/// Words with which a line continues the statement before it.
const CONTINUATIONS: [&str; 4] = ["else", "elif", "except", "finally"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Name(&'a str),
    /// A name after a dot.
    Attribute(&'a str),
    /// A string, with its prefix and quotes.
    Text(&'a str),
    /// An `=` outside of brackets that assigns.
    Assign,
    Symbol(char),
}

/// A statement at the top level, with its block and its decorators.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Token<'a>>,
}

/// A file that cannot be split, with the line of the problem.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidSource {
    pub(super) line: usize,
    pub(super) problem: &'static str,
}

/// Returns the statements of a file.
pub(super) fn statements(source: &str) -> Result<Vec<Statement<'_>>, InvalidSource> {
    let mut scanner = Scanner { source, at: 0, tokens: Vec::new() };
    let mut found: Vec<(Range<usize>, Vec<Token<'_>>)> = Vec::new();
    let mut needs_definition = false;
    while let Some((start, indent)) = scanner.next_line() {
        scanner.scan_until_end_of_line()?;
        let line = std::mem::take(&mut scanner.tokens);
        let continues = matches!(line.first(), Some(Token::Name(word)) if CONTINUATIONS.contains(word));
        if indent > 0 || continues || needs_definition {
            let Some((range, tokens)) = found.last_mut() else {
                return Err(scanner.invalid(start, "the line is indented, but no statement precedes it"));
            };
            range.end = scanner.at;
            needs_definition &= indent > 0 || line.first() == Some(&Token::Symbol('@'));
            tokens.extend(line);
        } else {
            needs_definition = line.first() == Some(&Token::Symbol('@'));
            found.push((start..scanner.at, line));
        }
    }
    Ok(found.into_iter().map(|(range, tokens)| Statement { text: source[range].trim_end(), tokens }).collect())
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<Token<'a>>,
}

impl Scanner<'_> {
    /// Moves to the next line with code. Returns its start and the width of its indentation.
    fn next_line(&mut self) -> Option<(usize, usize)> {
        loop {
            let start = self.at;
            let rest = self.source.get(start..).filter(|rest| !rest.is_empty())?;
            let line = rest.split_inclusive('\n').next().unwrap_or(rest);
            let code = line.trim_start_matches([' ', '\t', '\u{c}']);
            if code.trim().is_empty() || code.starts_with('#') {
                self.at += line.len();
                continue;
            }
            let indent = line.len() - code.len();
            self.at += indent;
            return Some((start, indent));
        }
    }

    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    fn starts_with(&self, text: &str) -> bool {
        self.source[self.at..].starts_with(text)
    }

    fn invalid(&self, at: usize, problem: &'static str) -> InvalidSource {
        InvalidSource { line: 1 + self.source[..at].matches('\n').count(), problem }
    }

    /// Scans a logical line, which ends with a line break outside of brackets and strings.
    fn scan_until_end_of_line(&mut self) -> Result<(), InvalidSource> {
        let (start, mut depth) = (self.at, 0_usize);
        while let Some(next) = self.peek() {
            match next {
                '\n' if depth == 0 => {
                    self.at += 1;
                    return Ok(());
                }
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth.checked_sub(1).ok_or_else(|| self.invalid(self.at, "a bracket is not opened"))?;
                }
                _ => {}
            }
            self.scan_token(next, depth, 0)?;
        }
        if depth == 0 { Ok(()) } else { Err(self.invalid(start, "a bracket is not closed")) }
    }

    /// Scans one token, or one character that is none.
    fn scan_token(&mut self, first: char, depth: usize, nesting: usize) -> Result<(), InvalidSource> {
        let start = self.at;
        match first {
            '#' => self.at += self.source[start..].find('\n').unwrap_or(self.source.len() - start),
            '\\' => {
                self.at += 1;
                self.at += self.peek().map_or(0, char::len_utf8);
            }
            '"' | '\'' => self.scan_string("", start, nesting)?,
            _ if first == '_' || first.is_alphabetic() => {
                let rest = &self.source[start..];
                let length = rest.find(|next: char| next != '_' && !next.is_alphanumeric()).unwrap_or(rest.len());
                let name = &rest[..length];
                self.at += length;
                let prefix = name.to_ascii_lowercase();
                if matches!(self.peek(), Some('"' | '\'')) && PREFIXES.contains(&prefix.as_str()) {
                    return self.scan_string(&prefix, start, nesting);
                }
                let is_attribute = self.tokens.last() == Some(&Token::Symbol('.'));
                self.tokens.push(if is_attribute { Token::Attribute(name) } else { Token::Name(name) });
            }
            _ if first.is_ascii_digit() => {
                let rest = &self.source[start..];
                let is_part = |next: char| next == '_' || next == '.' || next.is_ascii_alphanumeric();
                self.at += rest.find(|next| !is_part(next)).unwrap_or(rest.len());
            }
            _ => {
                self.at += first.len_utf8();
                if first == '=' && depth == 0 && self.is_assignment(start) {
                    self.tokens.push(Token::Assign);
                } else if !first.is_whitespace() {
                    self.tokens.push(Token::Symbol(first));
                }
            }
        }
        Ok(())
    }

    /// Whether the `=` at this place is not part of a comparison or of `:=`.
    fn is_assignment(&self, at: usize) -> bool {
        !self.source[..at].ends_with(['=', '!', '<', '>', ':']) && !self.source[at + 1..].starts_with('=')
    }

    /// Scans a string whose opening quote is next. The names in the expressions of an f-string become tokens.
    fn scan_string(&mut self, prefix: &str, start: usize, nesting: usize) -> Result<(), InvalidSource> {
        let unterminated = "a string is not closed";
        let quote = self.peek().unwrap_or('"');
        let triple = quote.to_string().repeat(3);
        let is_triple = self.starts_with(&triple);
        let end = if is_triple { triple } else { quote.to_string() };
        self.at += end.len();
        let has_expressions = prefix.contains(['f', 't']);
        while let Some(next) = self.peek() {
            if self.starts_with(&end) {
                self.at += end.len();
                self.tokens.push(Token::Text(&self.source[start..self.at]));
                return Ok(());
            }
            self.at += next.len_utf8();
            match next {
                '\n' if !is_triple => return Err(self.invalid(start, unterminated)),
                '\\' => self.at += self.peek().map_or(0, char::len_utf8),
                '{' if has_expressions && self.starts_with("{") => self.at += 1,
                '{' if has_expressions => self.scan_expression(start, nesting + 1)?,
                _ => {}
            }
        }
        Err(self.invalid(start, unterminated))
    }

    /// Scans an expression of an f-string up to its closing brace.
    fn scan_expression(&mut self, string: usize, nesting: usize) -> Result<(), InvalidSource> {
        if nesting > MAX_NESTING {
            return Err(self.invalid(string, "the expressions of an f-string are nested too deeply"));
        }
        let (mut depth, mut is_format) = (1_usize, false);
        while let Some(next) = self.peek() {
            match next {
                '{' if is_format => {
                    self.at += 1;
                    self.scan_expression(string, nesting + 1)?;
                    continue;
                }
                '}' if depth == 1 => {
                    self.at += 1;
                    return Ok(());
                }
                '(' | '[' | '{' if !is_format => depth += 1,
                ')' | ']' | '}' if !is_format => depth = depth.saturating_sub(1).max(1),
                ':' if depth == 1 => is_format = true,
                _ => {}
            }
            if is_format {
                self.at += next.len_utf8();
            } else {
                self.scan_token(next, depth, nesting)?;
            }
        }
        Err(self.invalid(string, "a string is not closed"))
    }
}
