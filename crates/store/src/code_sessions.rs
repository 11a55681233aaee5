//! The sessions in which code may call tools, and the servers that each of them may call.
//!
//! Rows exist only for existing sessions, and are deleted with them. They survive the death of the process; a power cut
//! ends the sessions, too.

use ringfence_core::SessionId;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Records that the code of a principal runs in this session for a profile. Returns false if there is no such
    /// session.
    pub async fn set_code_session(
        &self,
        session: &SessionId,
        principal: &str,
        profile: &str,
    ) -> Result<bool, StoreError> {
        let (session, principal, profile) = (session.clone(), principal.to_owned(), profile.to_owned());
        self.query(move |connection| {
            // An existing row is updated and not replaced, because its rowid determines the order.
            let changed = connection.execute(
                "INSERT INTO code_sessions (session, principal, profile)
                 SELECT id, ?2, ?3 FROM sessions WHERE id = ?1
                 ON CONFLICT (session) DO UPDATE SET principal = excluded.principal, profile = excluded.profile",
                params![session.as_str(), principal, profile],
            )?;
            Ok(changed > 0)
        })
        .await
    }

    /// Returns the sessions in which the code of a principal runs for a profile, the newest last.
    pub async fn code_sessions(&self, principal: &str, profile: &str) -> Result<Vec<SessionId>, StoreError> {
        let (principal, profile) = (principal.to_owned(), profile.to_owned());
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT code.session FROM code_sessions AS code JOIN sessions ON sessions.id = code.session
                 WHERE code.principal = ?1 AND code.profile = ?2 ORDER BY sessions.created, code.rowid",
            )?;
            let rows = statement.query_map([principal, profile], |row| row.get::<_, String>(0))?;
            Ok(rows.map(|row| row.map(SessionId::from_caller)).collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Lets a session call these servers, by uuid, in addition to those granted earlier. Returns false if there is no
    /// such session.
    pub async fn grant(&self, session: &SessionId, servers: &[String]) -> Result<bool, StoreError> {
        let (session, servers) = (session.clone(), servers.to_vec());
        self.query(move |connection| Ok(grant(connection, &session, &servers)?)).await
    }

    /// Returns the uuids of the servers that a session may call, in the order in which they were granted.
    pub async fn granted(&self, session: &SessionId) -> Result<Vec<String>, StoreError> {
        let session = session.clone();
        self.query(move |connection| {
            let query = "SELECT server FROM session_servers WHERE session = ?1 ORDER BY rowid";
            let mut statement = connection.prepare_cached(query)?;
            let rows = statement.query_map([session.as_str()], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// Checks the session and adds the grants in one transaction, so that none outlives the session.
fn grant(connection: &mut Connection, session: &SessionId, servers: &[String]) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let exists = transaction
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1)")?
        .query_row([session.as_str()], |row| row.get(0))?;
    if exists {
        let statement = "INSERT OR IGNORE INTO session_servers (session, server) VALUES (?1, ?2)";
        let mut statement = transaction.prepare_cached(statement)?;
        for server in servers {
            statement.execute([session.as_str(), server])?;
        }
    }
    transaction.commit()?;
    Ok(exists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionRecord;

    async fn open(sessions: &[(&str, u64)]) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        for (name, created) in sessions {
            store.upsert_session(record(name, *created)).await.unwrap();
        }
        (directory, store)
    }

    fn record(name: &str, created: u64) -> SessionRecord {
        SessionRecord {
            id: SessionId::from_caller(name),
            principal: "ci".into(),
            template: "python".into(),
            flavor: "code".into(),
            created,
            address: "launcher.sock#7".into(),
        }
    }

    fn id(name: &str) -> SessionId {
        SessionId::from_caller(name)
    }

    #[tokio::test]
    async fn sessions_are_found_again_by_principal_and_profile() {
        let (directory, store) = open(&[("new", 9), ("one", 5), ("two", 5), ("theirs", 5), ("else", 5)]).await;
        for (session, principal, profile) in [
            ("new", "ci", "code"),
            ("one", "ci", "code"),
            ("two", "ci", "code"),
            ("theirs", "other", "code"),
            ("else", "ci", "review"),
        ] {
            assert!(store.set_code_session(&id(session), principal, profile).await.unwrap());
        }
        assert!(store.set_code_session(&id("one"), "ci", "code").await.unwrap(), "repeating it is harmless");
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(store.code_sessions("ci", "code").await.unwrap(), [id("one"), id("two"), id("new")]);
        assert_eq!(store.code_sessions("other", "code").await.unwrap(), [id("theirs")]);
        assert_eq!(store.code_sessions("other", "review").await.unwrap(), []);
    }

    #[tokio::test]
    async fn grants_accumulate_per_session() {
        let (directory, store) = open(&[("one", 1), ("two", 2)]).await;
        assert!(store.grant(&id("one"), &["u-2".into(), "u-1".into()]).await.unwrap());
        assert!(store.grant(&id("one"), &["u-1".into(), "u-3".into()]).await.unwrap());
        assert!(store.grant(&id("two"), &[]).await.unwrap());
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        assert_eq!(store.granted(&id("one")).await.unwrap(), ["u-2", "u-1", "u-3"]);
        assert_eq!(store.granted(&id("two")).await.unwrap(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn grants_exist_only_while_their_session_exists() {
        let (_directory, store) = open(&[("one", 1), ("two", 2)]).await;
        for session in ["one", "two"] {
            store.set_code_session(&id(session), "ci", "code").await.unwrap();
            store.grant(&id(session), &["u-1".into()]).await.unwrap();
        }
        // The server updates the address of a running session.
        store.upsert_session(SessionRecord { address: "elsewhere#8".into(), ..record("two", 2) }).await.unwrap();
        store.remove_session(&id("one")).await.unwrap();
        assert_eq!(store.code_sessions("ci", "code").await.unwrap(), [id("two")]);
        assert_eq!(store.granted(&id("one")).await.unwrap(), Vec::<String>::new());
        assert_eq!(
            store.granted(&id("two")).await.unwrap(),
            ["u-1"],
            "an update of the session does not delete its grants"
        );

        // A new session with the same id starts without grants.
        assert!(!store.set_code_session(&id("one"), "ci", "code").await.unwrap());
        assert!(!store.grant(&id("one"), &["u-1".into()]).await.unwrap());
        store.upsert_session(record("one", 3)).await.unwrap();
        assert_eq!(store.granted(&id("one")).await.unwrap(), Vec::<String>::new());
        assert_eq!(store.code_sessions("ci", "code").await.unwrap(), [id("two")]);
    }
}
