//! Reports the end of each command to its caller, because only one task receives the events of an instance.

use std::collections::HashMap;

use ringfence_core::sync::Mutex;
use ringfence_sandbox::Event;
use tokio::sync::oneshot;

/// The commands that have not ended.
#[derive(Default)]
pub(crate) struct CommandEnds(Mutex<HashMap<u32, oneshot::Sender<Event>>>);

/// The end of one command.
pub struct CommandEnd(oneshot::Receiver<Event>);

impl CommandEnd {
    /// Waits for [`Event::Ended`], [`Event::StartFailed`] or [`Event::Lost`]. Cancel-safe; returns once.
    pub async fn wait(&mut self) -> Event {
        (&mut self.0).await.unwrap_or(Event::Lost)
    }
}

impl CommandEnds {
    /// Registers a command that is about to be started.
    pub(crate) fn register(&self, process: u32) -> CommandEnd {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.0.lock();
        // Removes abandoned commands, for example those whose kill was not confirmed in time.
        waiting.retain(|_, sender| !sender.is_closed());
        waiting.insert(process, sender);
        CommandEnd(receiver)
    }

    pub(crate) fn forget(&self, process: u32) {
        self.0.lock().remove(&process);
    }

    /// Returns the event if it is not about a command, or about all processes.
    pub(crate) fn handle_event(&self, event: Event) -> Option<Event> {
        let (Event::Ended { process, .. } | Event::StartFailed { process, .. }) = event else {
            if event == Event::Lost {
                self.report_loss();
            }
            return Some(event);
        };
        let Some(sender) = self.0.lock().remove(&process) else { return Some(event) };
        // The caller may no longer wait.
        let _ = sender.send(event);
        None
    }

    /// Reports the loss of the instance to all commands.
    pub(crate) fn report_loss(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use ringfence_sandbox::ExitStatus;

    use super::*;

    #[tokio::test]
    async fn each_command_gets_its_end_and_other_events_are_returned() {
        let ends = CommandEnds::default();
        let (mut first, mut second) = (ends.register(1), ends.register(2));
        let ended = |process| Event::Ended { process, status: ExitStatus::Exited(0) };
        assert_eq!(ends.handle_event(ended(2)), None);
        assert_eq!(ends.handle_event(ended(2)), Some(ended(2)), "a number is used once");
        assert_eq!(ends.handle_event(Event::Lost), Some(Event::Lost));
        assert_eq!((first.wait().await, second.wait().await), (Event::Lost, ended(2)));
    }
}
