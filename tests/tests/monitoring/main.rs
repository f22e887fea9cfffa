//! Monitoring: metrics, rules, the dashboard and logs, checked by Prometheus' own programs.

mod dashboard;
mod live;
mod metrics;
mod rules;
mod tools;
