//! Queries over TCP: each message has a length of two bytes in front (RFC 1035, 4.2.2).
//!
//! Queries of one connection are answered in order. A connection ends after a malformed message, or if a query or its
//! response takes too long.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::Resolver;

/// Maximum size of a query.
const MAX_QUERY_BYTES: usize = 1024;

/// Serves the queries of one connection.
pub(crate) async fn serve_connection<S>(resolver: &Resolver, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::with_capacity(MAX_QUERY_BYTES, stream);
    let query_timeout = resolver.context.limits.query_timeout;
    while let Ok(Some(())) = timeout(query_timeout, serve_query(resolver, &mut stream)).await {}
}

/// Serves the next query; returns `None` if the connection must be closed.
async fn serve_query<S>(resolver: &Resolver, stream: &mut BufReader<S>) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let length = usize::from(stream.read_u16().await.ok()?);
    if length > MAX_QUERY_BYTES {
        return None;
    }
    let mut query = vec![0; length];
    stream.read_exact(&mut query).await.ok()?;
    let response = resolver.respond(&query)?;
    let length = u16::try_from(response.len()).ok()?;
    stream.write_all(&[&length.to_be_bytes(), response.as_slice()].concat()).await.ok()
}
