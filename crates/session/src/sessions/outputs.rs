//! Reads the retained outputs of sessions.

use ringfence_core::{AuditKind, Failure, Kind, Principal, SessionId};

use super::{Sessions, events};

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
