//! What was compressed with zstd: any number of frames, and notes between them that are passed over.

use std::io::{self, BufRead, ErrorKind, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

pub(super) struct Frames<R> {
    source: R,
    /// Refuses frames that ask for more memory than those of any usual level.
    decoder: FrameDecoder,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new() }
    }

    fn next_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                if skipped < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
            }
            begun => begun.map_err(damaged),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() || self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if !self.decoder.is_finished() {
                let block = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, block).map_err(damaged)?;
            } else if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.next_frame()?;
            }
        }
    }
}

fn damaged(error: FrameDecoderError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        compress_to_vec(content, CompressionLevel::Fastest)
    }

    fn note(length: u32, content: &[u8]) -> Vec<u8> {
        [&0x184D_2A50_u32.to_le_bytes()[..], &length.to_le_bytes(), content].concat()
    }

    fn read(stream: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Frames::new(stream).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn all_frames_are_read_and_notes_are_passed_over() {
        let long = b"so much of it ".repeat(100_000);
        let stream = [note(3, b"abc"), frame(&long), frame(b""), note(0, b""), frame(b"end"), note(1, b"x")].concat();
        assert_eq!(read(&stream).unwrap(), [&long[..], b"end"].concat());
        assert_eq!(read(&[]).unwrap(), b"");
    }

    #[test]
    fn what_is_cut_or_something_else_is_an_error() {
        let whole = frame(&b"so much of it ".repeat(100));
        for length in 1..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} of {}", whole.len());
        }
        assert!(read(&[frame(b"it"), note(9, b"abc")].concat()).is_err(), "a note that is cut");
        assert!(read(&[&whole[..], b"else"].concat()).is_err(), "something else");
        // A window of 2 GiB.
        assert!(read(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00]).is_err(), "too much memory");
    }
}
