use super::*;

const HASH: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const OTHER: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn base() -> Url {
    Url::parse("https://index.example/simple/foo/").unwrap()
}

fn foo() -> PythonName {
    PythonName::parse("foo").unwrap()
}

#[test]
fn json_and_html_give_the_same_files() {
    let json = format!(
        r#"{{"meta": {{"api-version": "1.1"}}, "name": "foo", "files": [{{"filename": "foo-1-py3-none-any.whl",
        "url": "../../packages/foo-1-py3-none-any.whl", "hashes": {{"md5": "x", "sha256": "{HASH}"}},
        "requires-python": ">=3.8", "yanked": "broken", "core-metadata": {{"sha256": "{OTHER}"}},
        "upload-time": "2024-01-01T00:00:00Z"}}]}}"#
    );
    let html = format!(
        "<html><a href=\"/packages/foo-1-py3-none-any.whl#sha256={HASH}\" data-requires-python=\"&gt;=3.8\" \
         data-yanked=\"broken\" data-core-metadata=\"sha256={OTHER}\" data-upload-time=\"2024-01-01T00:00:00Z\">x</a>"
    );
    let from_json = parse("application/vnd.pypi.simple.v1+json", json.as_bytes(), &base()).unwrap();
    let from_html = parse("text/html; charset=utf-8", html.as_bytes(), &base()).unwrap();
    assert_eq!(from_json, from_html);
    assert_eq!(from_json[0].url, "https://index.example/packages/foo-1-py3-none-any.whl");
    // What the mirror serves can be parsed again.
    let served = parse("text/html", &to_html(&foo(), &from_html), &base()).unwrap();
    assert_eq!(served, parse("application/json", &to_json(&foo(), &from_html), &base()).unwrap());
    assert_eq!(served[0].url, format!("https://index.example/pypi/files/foo/{HASH}/foo-1-py3-none-any.whl"));
    assert_eq!(
        PythonFile { url: String::new(), ..served[0].clone() },
        PythonFile { url: String::new(), ..from_json[0].clone() }
    );
}

#[test]
fn files_that_cannot_be_checked_are_left_out() {
    let anchors = [
        "foo-1.tar.gz".to_owned(),
        "foo-1.tar.gz#md5=11111111111111111111111111111111".into(),
        format!("foo-1.tar.gz#sha1={}", "1".repeat(40)),
        format!("foo-1.tar.gz#sha256={}", "1".repeat(63)),
        format!("foo-1.exe#sha256={HASH}"),
        format!("..%2f..%2fetc%2fpasswd.whl#sha256={HASH}"),
        format!("javascript:alert(1)//foo-1.whl#sha256={HASH}"),
        format!("file:///etc/foo-1.whl#sha256={HASH}"),
        format!("data:text/plain,foo-1.whl#sha256={HASH}"),
        format!("https://user:secret@index.example/foo-1.whl#sha256={HASH}"),
        format!("foo-1\u{202e}.whl#sha256={HASH}"),
    ];
    let page = anchors.map(|href| format!("<a href=\"{href}\">x</a>")).concat();
    assert_eq!(parse("text/html", format!("<html>{page}").as_bytes(), &base()).unwrap(), []);
    let control = format!("<html><a href=\"foo-1.whl#sha256={HASH}\" data-requires-python=\"3&#10;\">x</a>");
    assert_eq!(parse("text/html", control.as_bytes(), &base()).unwrap(), []);
}

#[test]
fn other_documents_are_refused() {
    for (content_type, body) in [
        ("application/json", "{}"),
        ("application/vnd.pypi.simple.v1+json", r#"{"meta": {"api-version": "2.0"}, "files": []}"#),
        ("text/html", "an error"),
        ("application/json", "<html></html>"),
    ] {
        assert!(parse(content_type, body.as_bytes(), &base()).is_err(), "{body}");
    }
}

#[test]
fn served_html_is_escaped() {
    let file = PythonFile {
        file_name: "foo-1+cpu.whl".into(),
        url: String::new(),
        hash: FileHash::parse("sha256", HASH).unwrap(),
        requires_python: Some("\"><script>".into()),
        yanked: None,
        metadata: None,
        size: None,
        upload_time: None,
    };
    let page = String::from_utf8(to_html(&foo(), &[file])).unwrap();
    assert!(page.contains("data-requires-python=\"&quot;&gt;&lt;script&gt;\""), "{page}");
    assert!(page.contains("/foo-1%2Bcpu.whl#sha256="), "{page}");
}
