//! Displayed data: from the kernels to the content of the tool result.

use ringfence_testkit::Server;
use serde_json::{Value, json};

/// Runs code that displays something. Returns the content blocks after the first one, which ends with the status.
fn displayed(server: &Server, template: &str, code: &str) -> Vec<Value> {
    let response = server.call("execute_code", &json!({"code": code, "template": template}));
    let content = response["result"]["content"].as_array().unwrap_or_else(|| panic!("{code}: {response}"));
    let (status, blocks) = content.split_first().expect("status block");
    assert!(status["text"].as_str().is_some_and(|text| text.starts_with("[ok")), "{code}: {response}");
    blocks.to_vec()
}

/// Python code that displays data of one MIME type.
fn python(mime: &str, data: &str) -> String {
    let class = "class Displayed:\n def _repr_mimebundle_(self, include=None, exclude=None): return";
    format!("{class} {{'{mime}': {data}}}\ndisplay(Displayed())")
}

/// JavaScript code that displays data of one MIME type.
fn node(mime: &str, data: &str) -> String {
    format!("display({{[Symbol.for('Jupyter.display')]: () => ({{'{mime}': {data}}})}}); undefined")
}

#[test]
fn json_and_images_are_returned_with_their_mime_types() {
    let server = Server::start(&[], &[]);
    let svg = "<svg xmlns='x'/>";
    for (template, code) in
        [("python", python("application/json", "{'a': 1}")), ("node", "display({a: 1}); undefined".into())]
    {
        let blocks = displayed(&server, template, &code);
        let text = blocks[0]["text"].as_str().unwrap_or_default();
        assert_eq!(serde_json::from_str::<Value>(text).ok(), Some(json!({"a": 1})), "{template}: {blocks:?}");
    }
    for template in ["python", "node"] {
        let bundle = if template == "python" { python } else { node };
        let chart = displayed(&server, template, &bundle("application/vnd.chart.v5+json", "{'mark': 'bar'}"));
        let resource = &chart[0]["resource"];
        let data = resource["text"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        assert_eq!(data, Some(json!({"mark": "bar"})), "{template}: {chart:?}");
        assert_eq!(resource["mimeType"], "application/vnd.chart.v5+json", "{template}");
        let drawing = displayed(&server, template, &bundle("image/svg+xml", &format!("\"{svg}\"")));
        let blob = &drawing[0]["resource"];
        assert_eq!((&blob["mimeType"], &blob["blob"]), (&json!("image/svg+xml"), &json!("PHN2ZyB4bWxucz0neCcvPg==")));
    }
}

#[test]
fn each_display_of_a_session_has_a_unique_uri() {
    let server = Server::start(&[], &[]);
    let first = server.call("execute_code", &json!({"code": "class B:\n def _repr_html_(self): return '<b>'\nB()"}));
    let session = &first["result"]["structuredContent"]["session_id"];
    let second = server.call("execute_code", &json!({"code": "B()", "session_id": session}));
    let uris = |response: &Value| -> Vec<String> {
        let blocks = response["result"]["content"].as_array().into_iter().flatten();
        blocks.filter_map(|block| block["resource"]["uri"].as_str().map(ToOwned::to_owned)).collect()
    };
    let (first_uris, second_uris) = (uris(&first), uris(&second));
    assert_eq!((first_uris.len(), second_uris.len()), (1, 1), "{first_uris:?} {second_uris:?}");
    assert_ne!(first_uris, second_uris);
    for uri in [&first_uris[0], &second_uris[0]] {
        let read = server.request("resources/read", &json!({"uri": uri}));
        let contents = &read["result"]["contents"][0];
        assert_eq!((&contents["text"], &contents["mimeType"]), (&json!("<b>"), &json!("text/html")), "{read}");
    }
}

#[test]
fn markup_that_is_too_long_for_a_response_is_read_by_its_uri() {
    let server = Server::start(&[], &[]);
    let code = python("text/html", "'<p>' + 'x' * 100_000");
    let response = server.call("execute_code", &json!({"code": code}));
    let content = response["result"]["content"].as_array().expect("content is a list");
    assert!(content.iter().all(|item| item.to_string().len() < 1000), "{content:?}");
    let status = content[0]["text"].as_str().expect("a text");
    let uri = status.split([' ', ']', ',', ';']).find(|word| word.starts_with("ringfence://")).expect(status);
    let read = server.request("resources/read", &json!({"uri": uri}));
    assert_eq!(read["result"]["contents"][0]["text"].as_str().map(str::len), Some(100_003), "{status}");
}
