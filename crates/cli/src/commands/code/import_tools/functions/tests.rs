use super::*;

fn functions(source: &str) -> Vec<Function> {
    PythonFile::parse(source).unwrap().functions().collect()
}

/// Returns the module of the only function.
fn module(source: &str) -> String {
    let found = functions(source);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].source.clone()
}

#[test]
fn function_is_saved_with_what_it_uses_and_nothing_else() {
    let source = r#""""Tools."""
import os, json
import re  # unused
from collections import (
    Counter,
    deque,
)

LIMIT = 5
UNUSED = connect()
print("loaded")

class Box:
    def get(self): return LIMIT

def _count(words):
    return Counter(words)

# A comment.
@save_tool
async def top(text: str, *, sep=" ") -> dict:
    """Counts words.

        Indented.
    End.
    """
    return json.dumps(_count(text.split(sep)).most_common(LIMIT))

if __name__ == "__main__":
    run()
"#;
    let found = functions(source);
    assert_eq!(found.iter().map(|function| function.name.as_str()).collect::<Vec<_>>(), ["top"]);
    assert_eq!(found[0].doc, "Counts words.\n\n    Indented.\nEnd.");
    insta::assert_snapshot!(found[0].source, @r#"
    import os, json

    from collections import (
        Counter,
        deque,
    )

    LIMIT = 5

    def _count(words):
        return Counter(words)

    async def top(text: str, *, sep=" ") -> dict:
        """Counts words.

            Indented.
        End.
        """
        return json.dumps(_count(text.split(sep)).most_common(LIMIT))
    "#);
}

#[test]
fn last_definition_of_a_name_is_used() {
    let found = functions("def a(): return 1\n\n\ndef b(): return a()\n\ndef a():\n    return 2\n");
    assert_eq!(found[0].source, "def a():\n    return 2\n");
    assert_eq!(found[1].source, "def b(): return a()\n\ndef a():\n    return 2\n");
}

#[test]
fn names_in_conditional_imports_and_f_strings_are_found() {
    let conditional = r"try:
    import fast as json
except ImportError:
    import json
else:
    pass

def a(x):
    return json.dumps(x)
";
    assert_eq!(module(conditional), conditional);
    let nested = r#"W = 3
P = 'p'
Q = 'q'

def a(x):
    return f"{{Q}} {x['k']:>{W}} {P!r:'<9} {"}"}" + '{Q}'
"#;
    assert_eq!(module(nested), nested.replace("Q = 'q'\n", "").replace("W = 3\n", "W = 3\n\n"));
}

#[test]
fn text_that_looks_like_code_is_not_code() {
    let source = r#"def a():
    x = '''
def not_a_function(): pass
'''
    # def b(): '
    return (
x, "\"", r'\''
)

def c(): \
  return 1
"#;
    let names: Vec<String> = functions(source).into_iter().map(|function| function.name).collect();
    assert_eq!(names, ["a", "c"]);
    assert!(functions("x = 'def a(): pass'\nclass B:\n    def method(self): pass\n").is_empty());
    assert!(functions("").is_empty() && functions("# only a comment").is_empty());
}

#[test]
fn helpers_of_code_mode_are_imported() {
    let found = module(
        r"from __future__ import annotations

async def a(mcp_param):
    mcp_local = 1
    await mcp_param.x(mcp_local.y)
    return await mcp_time.now(), mcp_servers
",
    );
    let head: Vec<&str> = found.split("\n\n").next().unwrap().lines().collect();
    let expected = [
        "from __future__ import annotations",
        "from mcp.runtime import mcp_servers",
        "from mcp.servers import time as mcp_time",
    ];
    assert_eq!(head, expected);
}

#[test]
fn invalid_files_are_refused_with_their_line() {
    let error = |source: &str| match PythonFile::parse(source).err() {
        Some(InvalidFile::Source(invalid)) => format!("{}: {}", invalid.line, invalid.problem),
        other => format!("{other:?}"),
    };
    assert_eq!(error("x = 1\ny = 'a\n"), "2: a string is not closed");
    assert_eq!(error("\n\nx = '''a\n\n"), "3: a string is not closed");
    assert_eq!(error("x = (1,\n\n"), "1: a bracket is not closed");
    assert_eq!(error("x = 1)\n"), "1: a bracket is not opened");
    assert_eq!(error("  x = 1\n"), "1: the line is indented, but no statement precedes it");
    assert_eq!(error(&"f'{".repeat(1000)), "1: the expressions of an f-string are nested too deeply");
    let many: Vec<String> = (0..=MAX_FUNCTIONS).map(|number| format!("def f{number}(): pass")).collect();
    assert_eq!(error(&many.join("\n")), "Some(TooManyFunctions { max: 200 })");
}

#[test]
fn every_part_of_a_file_is_handled() {
    let source = include_str!("../../../../../../guest/kernels/python/mcp_bridge_source.py");
    for end in (0..=source.len()).step_by(7).filter(|end| source.is_char_boundary(*end)) {
        if let Ok(file) = PythonFile::parse(&source[..end]) {
            assert!(file.functions().all(|function| function.source.contains("def ")));
        }
    }
}
