//! The tasks of an HTTP/2 connection. They end with the connection.

use std::sync::Arc;

use hyper::rt::Executor;
use ringfence_core::sync::Mutex;
use tokio::task::JoinSet;

/// Owns the tasks of a connection, and aborts them when it is dropped.
pub(super) struct TaskOwner(Tasks);

/// Starts tasks for hyper.
#[derive(Clone)]
pub(super) struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl TaskOwner {
    pub(super) fn new() -> Self {
        Self(Tasks(Arc::new(Mutex::new(JoinSet::new()))))
    }

    pub(super) fn tasks(&self) -> Tasks {
        self.0.clone()
    }
}

impl Drop for TaskOwner {
    fn drop(&mut self) {
        // The tasks have clones of the set, so that it would otherwise never be dropped.
        self.0.0.lock().abort_all();
    }
}

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}
