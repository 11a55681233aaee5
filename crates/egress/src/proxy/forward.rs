//! Forwarding of one plain request and its response.
//!
//! Bytes after the request stay unread: a second request on the same connection would reach the server unchecked. The
//! response has `Connection: close`.

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, split};

use super::request::ForwardRequest;
use crate::http::{BodyError, BodyFraming, Head, HeadError, MAX_INTERIM_RESPONSES, MAX_RESPONSE_HEAD_BYTES};
use crate::refusal::Refusal;
use crate::relay::{IdleTimer, ReadBuffer};

/// Reason why the guest did not receive the complete response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// The guest has not received a final response yet, so that the refusal can be sent as one.
    #[error("the server sent no valid response")]
    NoResponse(#[source] Refusal),
    #[error("the exchange was interrupted")]
    Interrupted,
}

impl ForwardRequest {
    /// Sends the request and forwards the response.
    pub(super) async fn run<C, W, S>(
        &self,
        client: &mut C,
        to_client: &mut W,
        server: S,
        idle_timeout: Duration,
    ) -> Result<(), ForwardError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (server, mut to_server) = split(server);
        let mut server = ReadBuffer::new(server);
        let idle = &IdleTimer::new(idle_timeout);
        let exchange = async {
            to_server
                .write_all(&self.head)
                .await
                .map_err(|error| ForwardError::NoResponse(Refusal::Connect(error.kind())))?;
            let sending = self.body.copy(client, &mut to_server, idle);
            let mut receiving = pin!(self.forward_response(&mut server, to_client, idle));
            tokio::select! {
                biased;
                sent = sending => match sent {
                    // A server may respond and close before it has read the whole request.
                    Ok(()) | Err(BodyError::Write(_)) => receiving.await,
                    Err(_) => Err(ForwardError::Interrupted),
                },
                received = &mut receiving => received,
            }
        };
        idle.run(exchange).await.unwrap_or(Err(ForwardError::Interrupted))
    }

    async fn forward_response<S, W>(
        &self,
        server: &mut S,
        to_client: &mut W,
        idle: &IdleTimer,
    ) -> Result<(), ForwardError>
    where
        S: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..=MAX_INTERIM_RESPONSES {
            let response = ResponseHead::read(server, self.response_has_body)
                .await
                .map_err(|error| ForwardError::NoResponse(Refusal::Response(error)))?;
            idle.touch();
            to_client.write_all(&response.head).await.map_err(|_| ForwardError::Interrupted)?;
            if let Some(body) = response.body {
                return body.copy(server, to_client, idle).await.map_err(|_| ForwardError::Interrupted);
            }
        }
        Err(ForwardError::NoResponse(Refusal::Response(HeadError::Malformed("too many interim responses"))))
    }
}

/// The head of a response.
pub(crate) struct ResponseHead {
    /// The head as the guest receives it.
    pub(crate) head: Vec<u8>,
    /// The framing of the body; `None` for an interim response.
    pub(crate) body: Option<BodyFraming>,
}

impl ResponseHead {
    pub(crate) async fn read<S>(server: &mut S, may_have_body: bool) -> Result<Self, HeadError>
    where
        S: AsyncBufRead + Unpin,
    {
        let head = Head::read(server, MAX_RESPONSE_HEAD_BYTES).await?;
        // The proxy never forwards Upgrade, so no server may switch protocols.
        let Some(status) = parse_status(&head.start_line).filter(|status| status != b"101") else {
            return Err(HeadError::Malformed("invalid status line"));
        };
        let framing = BodyFraming::from_head(&head)?;
        let is_interim = status.starts_with(b"1");
        let is_empty = !may_have_body || matches!(status, b"204" | b"304");

        let mut out = [&head.start_line, b"\r\n".as_slice()].concat();
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
            (false, true) => Some(BodyFraming::Length(0)),
            (false, false) => Some(framing.unwrap_or(BodyFraming::UntilClose)),
        };
        Ok(Self { head: out, body })
    }
}

/// Returns the three digits of the status, if the line is a status line of HTTP/1.
fn parse_status(start_line: &[u8]) -> Option<&[u8]> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', rest @ ..] = start_line else { return None };
    let (status, reason) = rest.split_at(rest.len().min(3));
    let is_status = matches!(status, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']);
    (is_status && (reason.is_empty() || reason.starts_with(b" "))).then_some(status)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    /// Returns the response that the guest receives; the server does not close the connection.
    async fn forwarded(response: &str, response_has_body: bool) -> Result<String, ForwardError> {
        let head = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let request = ForwardRequest { head, body: BodyFraming::Length(0), response_has_body };
        let (proxy_end, mut server) = duplex(1024);
        server.write_all(response.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        let second_request = &mut &b"GET / HTTP/1.1\r\n\r\n"[..];
        request.run(second_request, &mut received, proxy_end, Duration::from_secs(300)).await?;
        let mut sent = Vec::new();
        server.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, request.head, "only one request reaches the server");
        Ok(String::from_utf8(received).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn responses_end_at_their_stated_end() {
        for (response, has_body, expected) in [
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
            assert_eq!(forwarded(response, has_body).await.unwrap(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_responses_are_refused() {
        for response in [
            "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
            "HTTP/1.1 2000 OK\r\n\r\n".to_owned(),
            "HTTP/1.1 20\r\n\r\n".to_owned(),
            "ICY 200 OK\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            "HTTP/1.1 103\r\n\r\n".repeat(MAX_INTERIM_RESPONSES + 1),
        ] {
            let result = forwarded(&response, true).await;
            assert!(matches!(result, Err(ForwardError::NoResponse(Refusal::Response(_)))), "{response:?} {result:?}");
        }
        let without_response = forwarded("", true).await;
        assert!(matches!(without_response, Err(ForwardError::Interrupted)));
    }
}
