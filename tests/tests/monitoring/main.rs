//! What operators look at: metrics, rules, the dashboard and logs, by Prometheus' own programs.

mod dashboard;
mod live;
mod metrics;
mod rules;
mod tools;
