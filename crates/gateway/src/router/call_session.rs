//! The session of a call: the one that it names, the default one of its connection, or a new one.

use ringfence_core::{Failure, Kind, SessionId};
use ringfence_mcp::client::Context;
use ringfence_session::{CallResult, Sessions};

use super::Gateway;
use crate::authorize::Action;
use crate::default_sessions::{Creation, DefaultSessions, Found, Origin, Owner, TemplateChoice, Wanted};
use crate::detach_on_drop::DetachOnDrop;
use crate::reply::{SessionAccess, ToolResult};
use crate::tools::arguments::SessionChoice;

/// The notice of a call whose default session is not the one of the last call.
const REPLACED: &str = "the previous default session has ended: its variables and files are lost";

/// The session in which a call runs.
pub(super) enum CallSession {
    Existing(SessionId),
    /// One that only this call knows.
    New,
    Default(Box<DefaultSession>),
}

/// The default session of a caller.
pub(super) struct DefaultSession {
    sessions: Sessions,
    default_sessions: DefaultSessions,
    owner: Owner,
    wanted: Wanted,
}

impl Gateway {
    /// Returns the session of a call that runs code or a command. `wanted` is the default session that it would use.
    pub(super) fn call_session(
        &self,
        choice: SessionChoice,
        wanted: Wanted,
        context: &Context,
    ) -> Result<CallSession, Failure> {
        Ok(match (choice, self.default_owner(context)) {
            (SessionChoice::Existing(id), _) => CallSession::Existing(id),
            (SessionChoice::Default, Some(owner)) => {
                let (sessions, default_sessions) = (self.sessions()?.clone(), self.default_sessions.clone());
                CallSession::Default(Box::new(DefaultSession { sessions, default_sessions, owner, wanted }))
            }
            (SessionChoice::New, _) | (SessionChoice::Default, None) => CallSession::New,
        })
    }

    /// Returns the session of a call of a file tool, which never creates a session that only it knows.
    pub(super) async fn file_session(&self, choice: SessionChoice, context: &Context) -> Result<FileSession, Failure> {
        if choice == SessionChoice::New {
            return Err(self.sessions()?.refused(&context.principal, None, new_session_for_files()));
        }
        let may_create = self.authorizer.allows_action(Action::CreateSession);
        let wanted = Wanted {
            template: TemplateChoice::LastUsed(self.sessions()?.template_name(None)?),
            flavor: None,
            creation: if may_create { Creation::ForOtherUse } else { Creation::Refused },
        };
        match self.call_session(choice, wanted, context)? {
            CallSession::New => Err(self.sessions()?.refused(&context.principal, None, no_session())),
            CallSession::Existing(id) => Ok(FileSession { id, default: None }),
            // A session that is being created must not be lost if the client disconnects.
            CallSession::Default(session) => {
                DetachOnDrop::new(async move {
                    let found = session.find().await?;
                    Ok(FileSession { id: found.id.clone(), default: Some((session, found)) })
                })
                .await
            }
        }
    }

    /// The caller to whom default sessions belong, if it has a connection.
    fn default_owner(&self, context: &Context) -> Option<Owner> {
        let (principal, profile) = (context.principal.clone(), self.profile_name.clone());
        context.connection.clone().map(|connection| Owner { principal, profile, connection })
    }
}

impl CallSession {
    /// How later calls reach this session.
    pub(super) fn access(&self) -> SessionAccess {
        match self {
            Self::Existing(_) | Self::New => SessionAccess::ByIdOnly,
            Self::Default(_) => SessionAccess::WithoutId,
        }
    }

    /// Runs a call. Without an id, the call creates its session.
    pub(super) async fn run<F>(self, call: impl Fn(Option<SessionId>) -> F) -> Result<CallResult, Failure>
    where
        F: Future<Output = Result<CallResult, Failure>>,
    {
        match self {
            Self::Existing(id) => call(Some(id)).await,
            Self::New => call(None).await,
            Self::Default(session) => session.run(call).await,
        }
    }
}

/// The session of a call of a file tool.
pub(super) struct FileSession {
    pub(super) id: SessionId,
    /// None if the call names the session.
    default: Option<(Box<DefaultSession>, Found)>,
}

impl FileSession {
    /// Renders the result of the call, and adds its session.
    pub(super) async fn render<T>(
        self,
        result: Result<T, Failure>,
        render: impl FnOnce(T) -> ToolResult,
    ) -> Result<ToolResult, Failure> {
        let origin = self.default.as_ref().map_or(Origin::Earlier, |(_, found)| found.origin);
        let notice = (origin == Origin::Replacement).then_some(REPLACED);
        // The loss explains why a file is missing.
        let mut rendered = result.map(render).map_err(|failure| notice.into_iter().fold(failure, Failure::hint))?;
        if let Some((session, found)) = &self.default {
            session.reported(found).await;
        }
        rendered.fields["session_id"] = self.id.as_str().into();
        if origin != Origin::Earlier {
            rendered.fields["session_created"] = true.into();
        }
        if let Some(notice) = notice {
            rendered.add_notice(notice);
            rendered.fields["notices"] = vec![notice].into();
        }
        Ok(rendered)
    }
}

impl DefaultSession {
    async fn find(&self) -> Result<Found, Failure> {
        self.default_sessions.find_or_create(&self.sessions, &self.owner, self.wanted.clone()).await
    }

    async fn reported(&self, found: &Found) {
        self.default_sessions.reported(&self.owner, found).await;
    }

    async fn run<F>(self, call: impl Fn(Option<SessionId>) -> F) -> Result<CallResult, Failure>
    where
        F: Future<Output = Result<CallResult, Failure>>,
    {
        let mut found = self.find().await?;
        let mut result = call(Some(found.id.clone())).await;
        // The session has ended in the meantime; nothing has run.
        if result.as_ref().is_err_and(|failure| failure.kind == Kind::SessionNotFound) {
            found = self.find().await?;
            result = call(Some(found.id.clone())).await;
        }
        let mut result = result?;
        self.reported(&found).await;
        result.session_created = found.origin != Origin::Earlier;
        if found.origin == Origin::Replacement {
            result.notices.insert(0, REPLACED.into());
        }
        Ok(result)
    }
}

fn new_session_for_files() -> Failure {
    Failure::new(Kind::Validation, "session_id `new` is not possible here: a new session has no files")
        .with("field", "session_id")
        .hint("omit session_id, or create a session with execute_code")
}

fn no_session() -> Failure {
    Failure::new(Kind::Validation, "session_id is required: this connection has no default session")
        .with("field", "session_id")
        .hint("send the session_id of an earlier result, or create a session with execute_code")
        .hint("to have a default session, connect to the URL with ?session=NAME")
}
