//! Reads the retained outputs of sessions.

use ringfence_core::{AuditKind, Failure, Kind, Principal, SessionId};

use super::{Sessions, events};
use crate::outputs::DisplayId;

impl Sessions {
    /// Returns a retained output, and the number of bytes that it lacks.
    pub async fn read_output(
        &self,
        principal: &Principal,
        id: &SessionId,
        number: u64,
    ) -> Result<(Vec<u8>, u64), Failure> {
        let read = self.try_read_output(principal, id, number).await;
        let (bytes, missing) = read.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::transferred(AuditKind::FileRead, principal, id, bytes.len()));
        Ok((bytes, missing))
    }

    /// Returns the data of a displayed item, and its MIME type.
    pub async fn read_display(
        &self,
        principal: &Principal,
        id: &SessionId,
        display: DisplayId,
    ) -> Result<(String, String), Failure> {
        let read = self.try_read_display(principal, id, display).await;
        let (data, mime) = read.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::transferred(AuditKind::FileRead, principal, id, data.len()));
        Ok((data, mime))
    }

    async fn try_read_display(
        &self,
        principal: &Principal,
        id: &SessionId,
        display: DisplayId,
    ) -> Result<(String, String), Failure> {
        let (data, mime) = self.find(principal, id)?.outputs.find_display(display).ok_or_else(|| {
            let message = format!("displayed item {}/{} of this session is not available", display.call, display.index);
            Failure::new(Kind::NotFound, message)
                .hint("the server retains only the last displayed items; display it again, or write it to a file")
        })?;
        let read = self.tasks().spawn_blocking(move || data.read()).await;
        let bytes = read.map_err(|error| error.to_string()).and_then(|read| read.map_err(|error| error.to_string()));
        let failed = |error| Failure::new(Kind::Internal, format!("cannot read a displayed item: {error}"));
        let text = String::from_utf8(bytes.map_err(failed)?).map_err(|error| failed(error.to_string()))?;
        Ok((text, mime))
    }

    async fn try_read_output(
        &self,
        principal: &Principal,
        id: &SessionId,
        number: u64,
    ) -> Result<(Vec<u8>, u64), Failure> {
        let output = self.find(principal, id)?.outputs.find(number).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("output {number} of this session is not available")).hint(
                "the server retains only the last few long outputs, until it ends; write important data to a file",
            )
        })?;
        let missing = output.missing_bytes;
        let read = self.tasks().spawn_blocking(move || output.read()).await;
        match read.map_err(|error| error.to_string()).and_then(|read| read.map_err(|error| error.to_string())) {
            Ok(bytes) => Ok((bytes, missing)),
            Err(error) => Err(Failure::new(Kind::Internal, format!("cannot read output {number}: {error}"))),
        }
    }
}
