//! A reader of zstd streams: any number of frames, with skippable frames between them.

use std::io::{self, BufRead, ErrorKind, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Decompresses a zstd stream.
pub(crate) struct ZstdReader<R> {
    source: R,
    /// The decoder refuses frames that need more memory than any common compression level.
    decoder: FrameDecoder,
}

impl<R: BufRead> ZstdReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new() }
    }

    /// Starts the next frame, or skips it if it is a skippable frame.
    fn start_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                if skipped < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
            }
            started => started.map_err(invalid_data),
        }
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() || self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if !self.decoder.is_finished() {
                let block = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, block).map_err(invalid_data)?;
            } else if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.start_frame()?;
            }
        }
    }
}

fn invalid_data(error: FrameDecoderError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    fn skippable_frame(length: u32, content: &[u8]) -> Vec<u8> {
        [&0x184D_2A50_u32.to_le_bytes()[..], &length.to_le_bytes(), content].concat()
    }

    fn read(stream: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        ZstdReader::new(stream).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn all_frames_are_read_and_skippable_frames_are_ignored() {
        let long = b"repeated content ".repeat(100_000);
        let stream = [
            skippable_frame(3, b"abc"),
            frame(&long),
            frame(b""),
            skippable_frame(0, b""),
            frame(b"end"),
            skippable_frame(1, b"x"),
        ]
        .concat();
        assert_eq!(read(&stream).unwrap(), [&long[..], b"end"].concat());
        assert_eq!(read(&[]).unwrap(), b"");
    }

    #[test]
    fn truncated_and_foreign_content_is_an_error() {
        let whole = frame(&b"repeated content ".repeat(100));
        for length in 1..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} of {}", whole.len());
        }
        assert!(
            read(&[frame(b"content"), skippable_frame(9, b"abc")].concat()).is_err(),
            "a truncated skippable frame"
        );
        assert!(read(&[&whole[..], b"else"].concat()).is_err(), "foreign content after the last frame");
        // This frame has a window of 2 GiB.
        assert!(
            read(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00]).is_err(),
            "a frame that needs too much memory"
        );
    }
}
