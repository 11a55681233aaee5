//! The default sessions of connections, by which a server finds them again after the end of the one before it.
//!
//! Rows exist only for existing sessions, and are deleted with them.

use ringfence_core::SessionId;
use rusqlite::params;

use crate::error::StoreError;
use crate::store::Store;

/// The caller to whom a default session belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultSessionOwner {
    pub principal: String,
    pub profile: String,
    pub connection: String,
}

/// A default session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultSessionRecord {
    pub session: SessionId,
    pub template: String,
}

impl Store {
    /// Records that a session is a default one of this owner. Returns false if there is no such session.
    pub async fn set_default_session(
        &self,
        session: &SessionId,
        owner: DefaultSessionOwner,
    ) -> Result<bool, StoreError> {
        let session = session.clone();
        self.query(move |connection| {
            let changed = connection.execute(
                "INSERT INTO default_sessions (session, principal, profile, connection)
                 SELECT id, ?2, ?3, ?4 FROM sessions WHERE id = ?1
                 ON CONFLICT (session) DO UPDATE
                 SET principal = excluded.principal, profile = excluded.profile, connection = excluded.connection",
                params![session.as_str(), owner.principal, owner.profile, owner.connection],
            )?;
            Ok(changed > 0)
        })
        .await
    }

    /// Returns the default sessions of an owner, the newest last.
    pub async fn default_sessions(&self, owner: DefaultSessionOwner) -> Result<Vec<DefaultSessionRecord>, StoreError> {
        self.query(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT of_owner.session, sessions.template
                 FROM default_sessions AS of_owner JOIN sessions ON sessions.id = of_owner.session
                 WHERE of_owner.principal = ?1 AND of_owner.profile = ?2 AND of_owner.connection = ?3
                 ORDER BY sessions.created, of_owner.rowid",
            )?;
            let rows = statement.query_map([owner.principal, owner.profile, owner.connection], |row| {
                let session = SessionId::from_caller(row.get::<_, String>(0)?);
                Ok(DefaultSessionRecord { session, template: row.get(1)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Returns the default sessions of all connections whose text starts with this.
    pub async fn default_sessions_of_connections(&self, prefix: &'static str) -> Result<Vec<SessionId>, StoreError> {
        self.query(move |connection| {
            let statement = "SELECT session FROM default_sessions WHERE substr(connection, 1, length(?1)) = ?1";
            let mut statement = connection.prepare_cached(statement)?;
            let rows = statement.query_map([prefix], |row| Ok(SessionId::from_caller(row.get::<_, String>(0)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Makes the default sessions of an ended connection ordinary sessions.
    pub async fn remove_default_sessions(&self, principal: &str, connection: &str) -> Result<(), StoreError> {
        let (principal, connection) = (principal.to_owned(), connection.to_owned());
        self.write(move |transaction| {
            let statement = "DELETE FROM default_sessions WHERE principal = ?1 AND connection = ?2";
            transaction.prepare_cached(statement)?.execute([principal, connection])?;
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionRecord;

    fn id(name: &str) -> SessionId {
        SessionId::from_caller(name)
    }

    fn owner(principal: &str, profile: &str, connection: &str) -> DefaultSessionOwner {
        DefaultSessionOwner { principal: principal.into(), profile: profile.into(), connection: connection.into() }
    }

    async fn found(store: &Store, owner: DefaultSessionOwner) -> Vec<(SessionId, String)> {
        let records = store.default_sessions(owner).await.unwrap();
        records.into_iter().map(|record| (record.session, record.template)).collect()
    }

    #[tokio::test]
    async fn default_sessions_are_found_again_by_their_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        for (name, created, template) in [("new", 9, "python"), ("old", 5, "node"), ("theirs", 5, "python")] {
            let session = SessionRecord {
                id: id(name),
                principal: "ci".into(),
                template: template.into(),
                flavor: "small".into(),
                created,
                address: "launcher.sock#7".into(),
            };
            store.upsert_session(session).await.unwrap();
            let principal = if name == "theirs" { "other" } else { "ci" };
            assert!(store.set_default_session(&id(name), owner(principal, "code", "name:a")).await.unwrap());
        }
        assert!(store.set_default_session(&id("old"), owner("ci", "code", "name:a")).await.unwrap(), "repeated");
        assert!(!store.set_default_session(&id("absent"), owner("ci", "code", "name:a")).await.unwrap());
        store.close().await;
        let store = Store::open(&directory.path().join("state")).unwrap();
        let ours = [(id("old"), "node".to_owned()), (id("new"), "python".to_owned())];
        assert_eq!(found(&store, owner("ci", "code", "name:a")).await, ours);
        for other in [owner("ci", "", "name:a"), owner("ci", "code", "name:b"), owner("x", "code", "name:a")] {
            assert!(found(&store, other).await.is_empty());
        }
        assert_eq!(store.default_sessions_of_connections("name:").await.unwrap().len(), 3);
        assert_eq!(store.default_sessions_of_connections("mcp:").await.unwrap(), []);
        store.remove_session(&id("old")).await.unwrap();
        assert_eq!(found(&store, owner("ci", "code", "name:a")).await, ours[1..], "ended sessions are forgotten");
        store.remove_default_sessions("ci", "name:a").await.unwrap();
        assert!(found(&store, owner("ci", "code", "name:a")).await.is_empty());
        assert_eq!(found(&store, owner("other", "code", "name:a")).await.len(), 1);
    }
}
