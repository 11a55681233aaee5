//! One plain request to a server, and its one answer.
//!
//! What the guest sends after the request is left unread: a second request on the same connection
//! would go to the server without having been judged. The answer says `Connection: close`.

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, split};

use super::body::{Body, BodyError};
use super::head::{Head, HeadError};
use super::refusal::Refusal;
use super::relay::Idle;
use super::request::Forward;

const MAX_ANSWER_HEAD: usize = 32 * 1024;
const MAX_INTERIM_ANSWERS: usize = 8;

/// Why a request was not answered in full.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// The guest has not been sent a final answer yet.
    #[error("the request was not answered")]
    Unanswered(#[source] Refusal),
    #[error("the exchange broke")]
    Broken,
}

impl Forward {
    /// Sends the request and passes the answer on.
    pub(super) async fn run<C, W, S>(
        &self,
        client: &mut C,
        to_client: &mut W,
        server: S,
        idle: Duration,
    ) -> Result<(), ForwardError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (server, mut to_server) = split(server);
        let mut server = BufReader::with_capacity(super::proxy::BUFFER, server);
        let idle = &Idle::new(idle);
        let exchange = async {
            to_server
                .write_all(&self.head)
                .await
                .map_err(|error| ForwardError::Unanswered(Refusal::Connect(error.kind())))?;
            let sending = self.body.copy(client, &mut to_server, idle);
            let mut receiving = pin!(self.receive(&mut server, to_client, idle));
            tokio::select! {
                biased;
                sent = sending => match sent {
                    // a server may answer and close before it has read everything
                    Ok(()) | Err(BodyError::Write(_)) => receiving.await,
                    Err(_) => Err(ForwardError::Broken),
                },
                received = &mut receiving => received,
            }
        };
        idle.guard(exchange).await.unwrap_or(Err(ForwardError::Broken))
    }

    async fn receive<S, W>(&self, server: &mut S, to_client: &mut W, idle: &Idle) -> Result<(), ForwardError>
    where
        S: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..=MAX_INTERIM_ANSWERS {
            let answer = Answer::read(server, self.answer_has_body)
                .await
                .map_err(|error| ForwardError::Unanswered(Refusal::Response(error)))?;
            idle.touch();
            to_client.write_all(&answer.head).await.map_err(|_| ForwardError::Broken)?;
            if let Some(body) = answer.body {
                return body.copy(server, to_client, idle).await.map_err(|_| ForwardError::Broken);
            }
        }
        Err(ForwardError::Unanswered(Refusal::Response(HeadError::Malformed("too many interim answers"))))
    }
}

/// The head of an answer as it goes to the guest, and the body to expect if it is the final one.
pub(super) struct Answer {
    pub(super) head: Vec<u8>,
    pub(super) body: Option<Body>,
}

impl Answer {
    pub(super) async fn read<S>(server: &mut S, may_have_body: bool) -> Result<Self, HeadError>
    where
        S: AsyncBufRead + Unpin,
    {
        let head = Head::read(server, MAX_ANSWER_HEAD).await?;
        let status = match head.start.as_slice() {
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', rest @ ..] => {
                let (status, reason) = rest.split_at(rest.len().min(3));
                let known = matches!(status, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']);
                (known && (reason.is_empty() || reason.starts_with(b" "))).then_some(status)
            }
            _ => None,
        };
        // Upgrade is never passed on, so nobody asked for another protocol
        let Some(status) = status.filter(|status| status != b"101") else {
            return Err(HeadError::Malformed("the status line"));
        };
        let framing = Body::of(&head)?;
        let is_interim = status.starts_with(b"1");
        let is_empty = !may_have_body || matches!(status, b"204" | b"304");

        let mut out = [&head.start, b"\r\n".as_slice()].concat();
        head.write_end_to_end(&mut out);
        if !is_interim {
            if let Some(framing) = framing.filter(|_| status != b"204") {
                framing.write_field(&mut out);
            }
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
        let body = match (is_interim, is_empty) {
            (true, _) => None,
            (false, true) => Some(Body::Length(0)),
            (false, false) => Some(framing.unwrap_or(Body::UntilClose)),
        };
        Ok(Self { head: out, body })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    /// What the guest sees of an answer; the server keeps the connection open.
    async fn seen(answer: &str, answer_has_body: bool) -> Result<String, ForwardError> {
        let forward = Forward { head: b"GET / HTTP/1.1\r\n\r\n".to_vec(), body: Body::Length(0), answer_has_body };
        let (ours, mut server) = duplex(1024);
        server.write_all(answer.as_bytes()).await.unwrap();
        let mut out = Vec::new();
        let idle = Duration::from_secs(300);
        forward.run(&mut &b"GET / HTTP/1.1\r\n\r\n"[..], &mut out, ours, idle).await?;
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, forward.head, "only one request reaches the server");
        Ok(String::from_utf8(out).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn answers_end_where_they_say() {
        for (answer, has_body, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: 1\r\n\r\nokHTTP/1.1 200",
                true,
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
            ),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nok\r\n0\r\n\r\n",
                true,
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\
                 Connection: close\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Ringfence-Reason: no-rule\r\n\r\n",
                false,
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            ),
            (
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                true,
                "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
            ),
        ] {
            assert_eq!(seen(answer, has_body).await.unwrap(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_make_no_sense() {
        for answer in [
            "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
            "HTTP/1.1 2000 OK\r\n\r\n".to_owned(),
            "HTTP/1.1 20\r\n\r\n".to_owned(),
            "ICY 200 OK\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            "HTTP/1.1 103\r\n\r\n".repeat(MAX_INTERIM_ANSWERS + 1),
        ] {
            assert!(matches!(seen(&answer, true).await, Err(ForwardError::Unanswered(Refusal::Response(_)))));
        }
        let silent = seen("", true).await;
        assert!(matches!(silent, Err(ForwardError::Broken)));
    }
}
