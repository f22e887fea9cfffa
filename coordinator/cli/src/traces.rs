//! The command's own span of a job that it submits, where the environment names a collector, as OpenTelemetry's
//! specification has it.

use std::path::PathBuf;

use ringtune_shared::daemon::traces::{TraceSettings, is_endpoint};
use ringtune_shared::trace::{TRACEPARENT, TraceContext};
use ringtune_shared::user_info::without_user_info;
use ringtune_traces::{About, Exporter, Open, Tracer};

use crate::output::remark;

/// Where spans are sent; the first one that is set counts.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The roots of its certificate.
const CERTIFICATES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];

/// What the environment says.
#[derive(Debug, PartialEq)]
struct TraceEnvironment {
    settings: TraceSettings,
    /// The span that this command is a part of.
    parent: Option<TraceContext>,
    /// Why no spans are sent, though somebody wants it.
    problem: Option<String>,
}

impl TraceEnvironment {
    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let first = |names: [&'static str; 2]| names.iter().find_map(|name| Some((*name, variable(name)?)));
        let parent = variable(&TRACEPARENT.to_uppercase()).and_then(|text| text.parse().ok());
        let off = |problem| Self { settings: TraceSettings::default(), parent, problem };
        let Some((name, endpoint)) = first(ENDPOINTS) else { return off(None) };
        let ca = first(CERTIFICATES).filter(|_| endpoint.starts_with("https://"));
        let ca = ca.map(|(_, file)| PathBuf::from(file)).unwrap_or_default();
        let settings = TraceSettings { endpoint, ca, sample_ratio: 1.0 };
        let problem = match settings.problems().first() {
            None => return Self { settings, parent, problem: None },
            Some(_) if is_endpoint(&settings.endpoint) => {
                let [_, certificate] = CERTIFICATES;
                format!("{name} begins with https://: {certificate} has to name the file of its roots")
            }
            Some(_) => {
                let given = without_user_info(&settings.endpoint);
                format!(
                    "{name}: {given:?} is not allowed; http://HOST:PORT and https://HOST:PORT are, of OTLP over gRPC"
                )
            }
        };
        off(Some(problem))
    }
}

/// Sends the spans of this command.
#[derive(Debug)]
pub struct Traces {
    tracer: Tracer,
    exporter: Option<Exporter>,
    parent: Option<TraceContext>,
}

impl Traces {
    /// As the environment says; what cannot be used in it is told, and no reason not to work.
    pub fn of_environment() -> Self {
        let wanted = TraceEnvironment::of(|name| std::env::var(name).ok());
        let about = About { service: "ringtune", instance: String::new() };
        let started = ringtune_traces::start(&wanted.settings, &about);
        let (started, failure) = match started {
            Ok(started) => (Some(started), None),
            Err(error) => (None, Some(error.to_string())),
        };
        if let Some(problem) = wanted.problem.or(failure) {
            remark(&format!("warning: no spans are sent: {problem}"));
        }
        let (tracer, exporter) = started.unzip();
        Self { tracer: tracer.unwrap_or_default(), exporter, parent: wanted.parent }
    }

    /// Begins what this command does, and gives what calls are a part of.
    pub fn begin(&self, name: &'static str) -> (Open, Option<TraceContext>) {
        let span = match self.parent {
            Some(parent) => self.tracer.open_below(Some(parent), name),
            None => self.tracer.open(self.tracer.root(), None, name),
        };
        let context = span.context().or(self.parent);
        (span, context)
    }

    /// Sends what is left, for 2 seconds at most.
    pub async fn finish(self) {
        if let Some(exporter) = self.exporter {
            exporter.finish().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(variables: &[(&str, &str)]) -> TraceEnvironment {
        TraceEnvironment::of(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_where_spans_are_sent() {
        let off = wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]);
        assert!(!off.settings.is_on() && off.problem.is_none() && off.parent.is_none());
        let (all, traces) = (
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b:2"),
        );
        assert_eq!(wanted(&[all]).settings.endpoint, "http://a:1");
        assert_eq!(wanted(&[all, traces]).settings.endpoint, "http://b:2");
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(wanted(&[("TRACEPARENT", parent)]).parent, parent.parse().ok());
        let secure = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://a:1");
        let with_ca = wanted(&[secure, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem")]);
        assert_eq!((with_ca.settings.ca, with_ca.problem), (PathBuf::from("/ca.pem"), None));
        // A file of roots beside an address without TLS is somebody else's.
        assert_eq!(wanted(&[all, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem")]).problem, None);
        for (given, names) in
            [(secure, "CERTIFICATE"), (("OTEL_EXPORTER_OTLP_ENDPOINT", "a/v1/traces"), "a/v1/traces")]
        {
            let refused = wanted(&[given]);
            assert!(!refused.settings.is_on(), "{given:?}");
            assert!(refused.problem.unwrap().contains(names), "{given:?}");
        }
        let problem = wanted(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://ada:lovelace@a:1")]).problem.unwrap();
        assert!(problem.contains("[removed]@a:1") && !problem.contains("lovelace"), "{problem}");
    }
}
