//! The log on standard error. With a scope, every line names the run.

use std::fmt;
use std::io::Write;

use ringfence_config::{LogFormat, LogSettings, Run};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging to `writer`, which is standard error or a substitute.
pub(crate) fn start<W: Write + 'static>(
    settings: &LogSettings,
    run: Option<&Run>,
    writer: impl Fn() -> W + Send + Sync + 'static,
) {
    // Libraries log more than a person wants to read.
    let filter = EnvFilter::new(format!("warn,ringfence={level}", level = settings.level.name()));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // If standard error is closed, a message about that would be written there too, and panic.
    let log = log.log_internal_errors(false);
    match (settings.format, run) {
        (LogFormat::Text, None) => log.with_target(false).init(),
        (LogFormat::Json, None) => log.json().init(),
        (LogFormat::Text, Some(run)) => {
            let prefix = format!("{{run={:?} session={:?}}} ", run.run_id, run.session_id);
            log.event_format(TextWithRun { format: Format::default().with_target(false), prefix }).init();
        }
        (LogFormat::Json, Some(run)) => {
            let prefix = format!("{{\"run\":{},", serde_json::json!(run));
            log.json().map_event_format(|format| JsonWithRun { format, prefix }).init();
        }
    }
}

/// Text lines that begin with the run.
struct TextWithRun<F> {
    format: F,
    prefix: String,
}

impl<S, N, F> FormatEvent<S, N> for TextWithRun<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writer.write_str(&self.prefix)?;
        self.format.format_event(context, writer, event)
    }
}

/// JSON objects with the run as their first field.
struct JsonWithRun<F> {
    format: F,
    prefix: String,
}

impl<S, N, F> FormatEvent<S, N> for JsonWithRun<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        // The format always writes an object with a time and a level.
        writer.write_str(&self.prefix)?;
        writer.write_str(line.strip_prefix('{').unwrap_or(&line))
    }
}
