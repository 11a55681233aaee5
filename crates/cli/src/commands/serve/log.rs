//! What the server logs, on standard error. Every line of a run names it.

use std::fmt;
use std::io::Write;

use ringfence_config::Run;
use ringfence_config::{Log, LogFormat};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// To standard error, or to what stands for it.
pub(crate) fn start<W: Write + 'static>(
    settings: &Log,
    run: Option<&Run>,
    writer: impl Fn() -> W + Send + Sync + 'static,
) {
    // Crates below us say more than a person wants to read.
    let filter = EnvFilter::new(format!("warn,ringfence={level}", level = settings.level.name()));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // Where nobody reads the log any more, a complaint about it would be printed there too, and panic.
    let log = log.log_internal_errors(false);
    match (settings.format, run) {
        (LogFormat::Text, None) => log.with_target(false).init(),
        (LogFormat::Json, None) => log.json().init(),
        (LogFormat::Text, Some(run)) => {
            let mark = format!("{{run={:?} session={:?}}} ", run.run_id, run.session_id);
            log.event_format(TextOfRun { format: Format::default().with_target(false), mark }).init();
        }
        (LogFormat::Json, Some(run)) => {
            let mark = format!("{{\"run\":{},", serde_json::json!(run));
            log.json().map_event_format(|format| JsonOfRun { format, mark }).init();
        }
    }
}

/// Each line begins with the run.
struct TextOfRun<F> {
    format: F,
    mark: String,
}

impl<S, N, F> FormatEvent<S, N> for TextOfRun<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writer.write_str(&self.mark)?;
        self.format.format_event(context, writer, event)
    }
}

/// Each object has the run as its first field.
struct JsonOfRun<F> {
    format: F,
    mark: String,
}

impl<S, N, F> FormatEvent<S, N> for JsonOfRun<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        // The format always writes an object with a time and a level.
        writer.write_str(&self.mark)?;
        writer.write_str(line.strip_prefix('{').unwrap_or(&line))
    }
}
