//! Questions to the user of a client: may a session connect to a host that no rule allows?
//!
//! Only the client itself responds, with the message that MCP has for this (elicitation). Neither an agent nor its code
//! can: arguments of a tool cannot contain a response. No response is a no.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use ringfence_egress::{Approval, ApprovalRequest, Host};
use ringfence_mcp::client::Context;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Maximum time for a response. Connections do not wait longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum number of questions in one call, so that code cannot tire its user.
const MAX_QUESTIONS: usize = 8;

/// Maximum number of unread requests of one call.
const MAX_UNREAD_REQUESTS: usize = 16;

/// The method of the request to the client.
const METHOD: &str = "elicitation/create";

/// The questions of one call: one host after the other.
pub(super) struct Questions {
    requests: mpsc::Receiver<ApprovalRequest>,
    waiting: VecDeque<Question>,
    refused: Vec<Host>,
    count: usize,
}

/// A question about a host, and the connections that wait for the response.
struct Question {
    host: Host,
    port: Option<u16>,
    replies: Vec<oneshot::Sender<Approval>>,
}

impl Questions {
    /// Returns the sending half too. `None` if the client cannot show a question.
    pub(super) fn of_client(context: &Context) -> Option<(mpsc::Sender<ApprovalRequest>, Self)> {
        if !can_show_forms(&context.capabilities) {
            return None;
        }
        let (sender, requests) = mpsc::channel(MAX_UNREAD_REQUESTS);
        Some((sender, Self { requests, waiting: VecDeque::new(), refused: Vec::new(), count: 0 }))
    }

    /// Waits for a question, and returns it as a request to the client. The next call returns the same question until
    /// there is a response. Cancel-safe.
    pub(super) async fn next(&mut self) -> Value {
        loop {
            if let Some(question) = self.waiting.front() {
                return json!({"method": METHOD, "params": question.params()});
            }
            self.receive().await;
        }
    }

    /// Receives one request. Never ends after the last one. Cancel-safe.
    async fn receive(&mut self) {
        let Some(ApprovalRequest { host, port, reply }) = self.requests.recv().await else {
            return std::future::pending().await;
        };
        if let Some(question) = self.waiting.iter_mut().find(|question| question.host == host) {
            question.replies.push(reply);
        } else if self.count < MAX_QUESTIONS && !self.refused.contains(&host) {
            self.count += 1;
            self.waiting.push_back(Question { host, port, replies: vec![reply] });
        }
        // Otherwise the reply is dropped, which is a no.
    }

    /// Passes the response to the first question on to all connections that wait for it.
    pub(super) fn respond(&mut self, response: &Value) {
        let Some(question) = self.waiting.pop_front() else { return };
        let approval = parse(response);
        for reply in question.replies {
            let _ = reply.send(approval);
        }
        if approval == Approval::No {
            self.refused.push(question.host);
        }
    }

    /// Asks a client of the legacy era, which gets requests while its call runs. Never ends.
    pub(super) async fn ask(&mut self, context: &Context) -> Infallible {
        loop {
            let mut request = self.next().await;
            let response = {
                let asking = ask_client(context, request["params"].take());
                tokio::pin!(asking);
                loop {
                    tokio::select! {
                        response = &mut asking => break response,
                        () = self.receive() => {}
                    }
                }
            };
            self.respond(&response);
        }
    }
}

impl Question {
    fn params(&self) -> Value {
        let port =
            self.port.filter(|port| !matches!(port, 80 | 443)).map_or_else(String::new, |port| format!(":{port}"));
        json!({
            "message": format!("Allow {}{port} for this session?", self.host),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "decision": {
                        "type": "string",
                        "title": "Decision",
                        "description": "once: this connection; always: until the session ends",
                        "enum": ["once", "always", "no"],
                    },
                },
                "required": ["decision"],
            },
        })
    }
}

async fn ask_client(context: &Context, params: Value) -> Value {
    let Some(client) = &context.client else { return Value::Null };
    let call = client.call(&context.sink, METHOD, Some(params), &context.cancel);
    timeout(RESPONSE_TIMEOUT, call).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Whether a client can show forms. An empty capability means forms only.
fn can_show_forms(capabilities: &Value) -> bool {
    let elicitation = &capabilities["elicitation"];
    elicitation.as_object().is_some_and(|modes| modes.is_empty() || modes.contains_key("form"))
}

fn parse(response: &Value) -> Approval {
    match (response["action"].as_str(), response["content"]["decision"].as_str()) {
        (Some("accept"), Some("once")) => Approval::Once,
        (Some("accept"), Some("always")) => Approval::Always,
        _ => Approval::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions() -> (mpsc::Sender<ApprovalRequest>, Questions) {
        let (sender, requests) = mpsc::channel(MAX_UNREAD_REQUESTS);
        (sender, Questions { requests, waiting: VecDeque::new(), refused: Vec::new(), count: 0 })
    }

    async fn connect(sender: &mpsc::Sender<ApprovalRequest>, host: &str) -> oneshot::Receiver<Approval> {
        let (reply, approval) = oneshot::channel();
        let request = ApprovalRequest { host: host.parse().unwrap(), port: Some(443), reply };
        sender.send(request).await.unwrap();
        approval
    }

    fn response(decision: &str) -> Value {
        json!({"action": "accept", "content": {"decision": decision}})
    }

    #[tokio::test]
    async fn connections_to_one_host_share_a_question() {
        let (sender, mut questions) = questions();
        let (first, second) = (connect(&sender, "a.example").await, connect(&sender, "a.example").await);
        let third = connect(&sender, "b.example").await;
        assert_eq!(questions.next().await["params"]["message"], "Allow a.example for this session?");
        questions.receive().await;
        questions.receive().await;
        questions.respond(&response("always"));
        assert_eq!((first.await, second.await), (Ok(Approval::Always), Ok(Approval::Always)));
        assert_eq!(questions.next().await["params"]["message"], "Allow b.example for this session?");
        questions.respond(&json!({"action": "decline"}));
        assert_eq!(third.await, Ok(Approval::No));
        let again = connect(&sender, "b.example").await;
        questions.receive().await;
        assert!(again.await.is_err(), "a refused host is not asked about again in the same call");
    }

    #[tokio::test]
    async fn number_of_questions_is_limited() {
        let (sender, mut questions) = questions();
        for number in 0..MAX_QUESTIONS {
            let waiting = connect(&sender, &format!("h{number}.example")).await;
            questions.next().await;
            questions.respond(&response("once"));
            assert_eq!(waiting.await, Ok(Approval::Once));
        }
        let over = connect(&sender, "over.example").await;
        questions.receive().await;
        assert!(over.await.is_err());
    }

    #[test]
    fn everything_but_an_accepted_decision_is_no() {
        for no in [
            Value::Null,
            response("no"),
            response("yes"),
            json!({"action": "accept"}),
            json!({"action": "cancel", "content": {"decision": "always"}}),
            json!({"content": {"decision": "always"}}),
        ] {
            assert_eq!(parse(&no), Approval::No, "{no}");
        }
        assert_eq!(parse(&response("once")), Approval::Once);
    }

    #[test]
    fn only_clients_with_forms_are_asked() {
        for (capabilities, expected) in [
            (json!({}), false),
            (json!({"elicitation": {}}), true),
            (json!({"elicitation": {"form": {}, "url": {}}}), true),
            (json!({"elicitation": {"url": {}}}), false),
            (json!({"elicitation": true}), false),
        ] {
            assert_eq!(can_show_forms(&capabilities), expected, "{capabilities}");
        }
    }
}
