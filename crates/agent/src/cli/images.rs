//! `sela images push`: stores a file at the exchange under the hash of its bytes and prints that address.

use super::end::{CliError, Outcome};
use super::exchange::Exchange;
use super::output::Output;
use bytes::Bytes as Chunk;
use futures_util::{Stream, stream};
use reqwest::Method;
use sela_protocol::blob::BlobId;
use sela_protocol::tenant::Stored;
use sha2::{Digest as _, Sha256};
use std::path::Path;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

const CHUNK: usize = 256 << 10;

/// Pushes a file.
///
/// # Errors
/// A file that cannot be read, or an exchange that refuses it or is not reached.
pub(crate) async fn push(exchange: &Exchange, archive: &Path, output: &mut Output) -> Outcome {
    let unreadable = |error: std::io::Error| CliError::Failed(format!("{} cannot be read: {error}", archive.display()));
    let blob = address_of(archive).await.map_err(unreadable)?;
    let file = File::open(archive).await.map_err(unreadable)?;
    let size = file.metadata().await.map_err(unreadable)?.len();
    let request = exchange
        .request(Method::PUT, &format!("/v1/blobs/{blob}"))
        .header(reqwest::header::CONTENT_LENGTH, size)
        .body(reqwest::Body::wrap_stream(chunks_of(file)));
    let stored: Stored = exchange.ask(request).await?;
    if output.is_json() {
        return Ok(output.document(&stored)?);
    }
    Ok(output.line(stored.blob)?)
}

async fn address_of(path: &Path) -> std::io::Result<BlobId> {
    let mut file = File::open(path).await?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = file.read(&mut chunk).await?;
        if length == 0 {
            return Ok(BlobId::from_hash(hash.finalize().into()));
        }
        hash.update(&chunk[..length]);
    }
}

fn chunks_of(file: File) -> impl Stream<Item = std::io::Result<Chunk>> {
    stream::try_unfold(file, |mut file| async move {
        let mut chunk = Vec::with_capacity(CHUNK);
        (&mut file).take(CHUNK as u64).read_to_end(&mut chunk).await?;
        Ok((!chunk.is_empty()).then_some((Chunk::from(chunk), file)))
    })
}
