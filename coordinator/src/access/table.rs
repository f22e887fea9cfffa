//! Who may make which call: one row for each method of both ports.
//!
//! The table is compared with what is served when the coordinator starts. What has no row is not served.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use ringtune_security::Role::{self, Admin, Observer, Submitter, Worker};

/// For whom a method is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Also for those of whom nothing is known.
    Everybody,
    /// For whoever has a certificate or a token.
    Known,
    /// For whoever has a certificate.
    Certified,
    /// For whoever has one of these roles.
    Roles(&'static [Role]),
    /// Of the HTTP port: for whoever may make the gRPC calls that it stands for. Those decide.
    AsCalls,
}

/// A method, and who may call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// "/ringtune.v1.JobService/GetJob"; of the HTTP port "GET /metrics".
    pub method: &'static str,
    /// For whom it is.
    pub who: Who,
    /// Submitters reach their own jobs with it, and workers those that they have a place in.
    pub own: bool,
    /// It changes something, so that the audit log has a line for each call.
    pub changes: bool,
    /// It is called so often, once for each file, that only calls that came to nothing have one: the job that the files are for
    /// has its own.
    pub often: bool,
}

impl Row {
    /// The method's own name: "GetJob", "/metrics".
    pub fn name(&self) -> &'static str {
        match self.method.split_once(' ') {
            Some((_, path)) => path,
            None => self.method.rsplit('/').next().unwrap_or(self.method),
        }
    }

    /// Whether it is for this role.
    pub fn is_for(&self, role: Role) -> bool {
        match self.who {
            Who::Everybody | Who::Known | Who::Certified | Who::AsCalls => true,
            Who::Roles(roles) => roles.contains(&role),
        }
    }
}

const fn read(method: &'static str, who: Who) -> Row {
    Row { method, who, own: false, changes: false, often: false }
}

const fn change(method: &'static str, who: Who) -> Row {
    Row { method, who, own: false, changes: true, often: false }
}

const fn own(row: Row) -> Row {
    Row { own: true, ..row }
}

const fn often(row: Row) -> Row {
    Row { often: true, ..row }
}

const ADMINS: Who = Who::Roles(&[Admin]);
const LOOKERS: Who = Who::Roles(&[Observer, Admin]);
const USERS: Who = Who::Roles(&[Submitter, Admin]);
const PEOPLE: Who = Who::Roles(&[Submitter, Observer, Admin]);
const WORKERS: Who = Who::Roles(&[Worker]);
const SENDERS: Who = Who::Roles(&[Submitter, Worker, Admin]);
const ALL: Who = Who::Roles(&[Submitter, Worker, Observer, Admin]);

/// Methods of the gRPC port.
pub const GRPC: [Row; 42] = [
    change("/ringtune.v1.AccessService/Join", Who::Everybody),
    change("/ringtune.v1.AccessService/RenewCertificate", Who::Certified),
    read("/ringtune.v1.AccessService/WhoAmI", Who::Known),
    change("/ringtune.v1.AccessService/CreateToken", ADMINS),
    read("/ringtune.v1.AccessService/ListTokens", ADMINS),
    change("/ringtune.v1.AccessService/RevokeToken", ADMINS),
    read("/ringtune.v1.AccessService/ListCertificates", LOOKERS),
    change("/ringtune.v1.AccessService/RevokeCertificate", ADMINS),
    read("/ringtune.v1.AccessService/GetAuthority", LOOKERS),
    change("/ringtune.v1.AccessService/RotateAuthority", ADMINS),
    change("/ringtune.v1.AccessService/RetireAuthority", ADMINS),
    own(change("/ringtune.v1.JobService/CreateJob", USERS)),
    own(change("/ringtune.v1.JobService/CreateSweep", USERS)),
    own(read("/ringtune.v1.JobService/GetSweep", PEOPLE)),
    own(change("/ringtune.v1.JobService/CancelSweep", USERS)),
    own(change("/ringtune.v1.JobService/VerifyJob", USERS)),
    own(change("/ringtune.v1.JobService/CancelJob", USERS)),
    own(change("/ringtune.v1.JobService/OrderJob", USERS)),
    own(change("/ringtune.v1.JobService/PauseJob", USERS)),
    own(change("/ringtune.v1.JobService/ResumeJob", USERS)),
    own(change("/ringtune.v1.JobService/DeleteJob", USERS)),
    own(read("/ringtune.v1.JobService/GetJob", PEOPLE)),
    own(read("/ringtune.v1.JobService/ListJobs", PEOPLE)),
    own(read("/ringtune.v1.JobService/WatchJob", PEOPLE)),
    own(read("/ringtune.v1.JobService/WatchJobs", PEOPLE)),
    // A new rank 0 writes the steps of the ones before it into metrics.csv.
    own(read("/ringtune.v1.JobService/ListSteps", ALL)),
    own(read("/ringtune.v1.JobService/ListEvents", PEOPLE)),
    own(read("/ringtune.v1.ClusterService/ListWorkers", PEOPLE)),
    own(read("/ringtune.v1.ClusterService/GetWorker", PEOPLE)),
    read("/ringtune.v1.ClusterService/GetCluster", PEOPLE),
    own(read("/ringtune.v1.ClusterService/GetLimits", PEOPLE)),
    change("/ringtune.v1.ClusterService/DrainWorker", ADMINS),
    change("/ringtune.v1.ClusterService/UndrainWorker", ADMINS),
    often(own(change("/ringtune.v1.ArtifactService/Upload", SENDERS))),
    own(read("/ringtune.v1.ArtifactService/Download", ALL)),
    own(read("/ringtune.v1.ArtifactService/ListArtifacts", ALL)),
    own(change("/ringtune.v1.ArtifactService/DeleteArtifact", SENDERS)),
    change("/ringtune.v1.WorkerService/Session", WORKERS),
    read("/grpc.health.v1.Health/Check", Who::Everybody),
    read("/grpc.health.v1.Health/Watch", Who::Everybody),
    read("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Who::Known),
    read("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Who::Known),
];

/// Routes of the HTTP port; `{…}` stands for a part that may be anything.
pub const HTTP: [Row; 15] = [
    read("GET /", Who::Everybody),
    read("GET /assets/{name}", Who::Everybody),
    read("GET /healthz", Who::Everybody),
    read("GET /readyz", Who::Everybody),
    read("GET /metrics", LOOKERS),
    read("GET /metrics/workers/{worker}", LOOKERS),
    read("GET /sd/workers", LOOKERS),
    read("GET /api/session", Who::Everybody),
    read("POST /login", Who::Everybody),
    read("POST /logout", Who::Everybody),
    read("POST /api/{service}/{method}", Who::AsCalls),
    read("GET /api/events", Who::AsCalls),
    read("GET /api/files/{job}", Who::AsCalls),
    read("GET /api/files/{job}/{name}", Who::AsCalls),
    read("GET /api/contents/{sha256}", Who::AsCalls),
];

/// Services of the API that workers serve, and the coordinator does not.
pub const OF_WORKERS: [&str; 2] = ["ringtune.v1.RingService", "ringtune.v1.ProbeService"];

/// The table and what is served differ. It is a mistake in this program: such a coordinator does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Something is served for which nobody said who may call it.
    #[error("the access table has no row for {0}")]
    NoRow(String),
    /// The table speaks of something that is not there.
    #[error("the access table has a row for {0}, which is not served")]
    NotServed(&'static str),
    /// Two rows may say different things.
    #[error("the access table has two rows for {0}")]
    Twice(&'static str),
    /// What is served cannot be read.
    #[error("the API's own description cannot be read: {0}")]
    Unreadable(String),
}

/// The row of a gRPC method, "/ringtune.v1.JobService/GetJob".
pub fn grpc_row(path: &str) -> Option<&'static Row> {
    GRPC.iter().find(|row| row.method == path)
}

/// The row of a request to the HTTP port. Whoever may GET may ask for the head alone.
pub fn http_row(method: &str, path: &str) -> Option<&'static Row> {
    let method = if method == "HEAD" { "GET" } else { method };
    HTTP.iter().find(|row| row.method.split_once(' ').is_some_and(|row| row.0 == method && fits(row.1, path)))
}

/// Whether a path is one of a route's.
fn fits(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/'), path.split('/'));
    loop {
        match (route.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given => {}
            (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() => {}
            _ => return false,
        }
    }
}

/// What a role may call over gRPC with one answer or a stream: "JobService/CancelJob". None: where nobody is asked who
/// they are.
pub fn calls_of(role: Option<Role>, certified: bool) -> Vec<String> {
    let may = |row: &&Row| {
        role.is_none_or(|role| row.is_for(role)) && (role.is_none() || certified || row.who != Who::Certified)
    };
    let name = |row: &Row| row.method.strip_prefix("/ringtune.v1.").map(str::to_owned);
    GRPC.iter().filter(may).filter_map(name).collect()
}

/// Compares the rows with all that is served on the gRPC port.
///
/// # Errors
/// The first difference.
pub fn check_grpc() -> Result<(), TableError> {
    let sets = [
        ringtune_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut served = BTreeSet::new();
    for set in sets {
        served.extend(methods(set)?);
    }
    check(&GRPC, &served)
}

/// Compares the rows with the routes of the HTTP port: method and path of each.
///
/// # Errors
/// The first difference.
pub fn check_http<'a>(routes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), TableError> {
    let served = routes.into_iter().map(|(method, path)| format!("{method} {path}")).collect();
    check(&HTTP, &served)
}

/// The methods in a descriptor set, but for those of services that workers serve.
fn methods(set: &[u8]) -> Result<Vec<String>, TableError> {
    let files = FileDescriptorSet::decode(set).map_err(|error| TableError::Unreadable(error.to_string()))?;
    let mut methods = Vec::new();
    for file in &files.file {
        for service in &file.service {
            let service_name = format!("{}.{}", file.package(), service.name());
            if !OF_WORKERS.contains(&service_name.as_str()) {
                let named = |method: &prost_types::MethodDescriptorProto| {
                    format!("/{service_name}/{}", method.name())
                };
                methods.extend(service.method.iter().map(named));
            }
        }
    }
    Ok(methods)
}

fn check(rows: &[Row], served: &BTreeSet<String>) -> Result<(), TableError> {
    let mut known = BTreeSet::new();
    for row in rows {
        if !known.insert(row.method) {
            return Err(TableError::Twice(row.method));
        }
        if !served.contains(row.method) {
            return Err(TableError::NotServed(row.method));
        }
    }
    match served.iter().find(|method| !known.contains(method.as_str())) {
        Some(method) => Err(TableError::NoRow(method.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_row_and_every_row_a_method() {
        assert_eq!(check_grpc(), Ok(()));
        let served: BTreeSet<String> = GRPC.iter().map(|row| row.method.to_owned()).collect();
        let without = "/ringtune.v1.JobService/CancelJob";
        let more: Vec<Row> = GRPC.iter().filter(|row| row.method != without).copied().collect();
        assert_eq!(check(&more, &served), Err(TableError::NoRow(without.to_owned())));
        let fewer = served.iter().filter(|method| *method != without).cloned().collect();
        assert_eq!(check(&GRPC, &fewer), Err(TableError::NotServed(without)));
        let twice = [GRPC[0], GRPC[0]];
        assert_eq!(check(&twice, &served), Err(TableError::Twice(GRPC[0].method)));
        assert!(matches!(methods(b"\xff"), Err(TableError::Unreadable(_))));
    }

    #[test]
    fn every_route_has_a_row_and_every_row_a_route() {
        let routes: Vec<_> = HTTP.iter().filter_map(|row| row.method.split_once(' ')).collect();
        assert_eq!(check_http(routes.iter().copied()), Ok(()));
        let fewer = routes.iter().copied().filter(|(_, path)| *path != "/metrics");
        assert_eq!(check_http(fewer), Err(TableError::NotServed("GET /metrics")));
        let more = routes.into_iter().chain([("POST", "/x")]);
        assert_eq!(check_http(more), Err(TableError::NoRow("POST /x".to_owned())));
        assert_eq!(http_row("HEAD", "/metrics").map(Row::name), Some("/metrics"));
        assert!(http_row("POST", "/metrics").is_none());
        assert!(http_row("GET", "/metrics/").is_none());
    }

    #[test]
    fn a_route_fits_paths_with_as_many_parts() {
        let who = |method, path| http_row(method, path).map(|row| row.who);
        assert_eq!(who("POST", "/api/ringtune.v1.JobService/GetJob"), Some(Who::AsCalls));
        assert_eq!(who("HEAD", "/api/files/x/y"), Some(Who::AsCalls));
        assert_eq!(who("GET", "/api/session"), Some(Who::Everybody));
        for (method, path) in [
            ("GET", "/api/ringtune.v1.JobService/GetJob"),
            ("GET", "/api/files/"),
            ("GET", "/api/files//y"),
            ("GET", "/api/files/x/y/z"),
            ("GET", "/api/files/x/y/"),
            ("GET", "/api/contents/"),
            ("GET", "/api"),
            ("GET", "//"),
            ("GET", ""),
            ("GET", "/api/session/"),
            ("POST", "/api/session"),
            ("DELETE", "/api/files/x/y"),
        ] {
            assert_eq!(who(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn a_role_is_told_what_it_may_call() {
        let has = |role, certified, call: &str| calls_of(role, certified).iter().any(|name| name == call);
        assert!(
            has(None, false, "AccessService/RenewCertificate")
                && has(None, false, "ClusterService/DrainWorker")
        );
        assert!(has(Some(Submitter), false, "JobService/CancelJob"));
        assert!(!has(Some(Submitter), false, "ClusterService/DrainWorker"));
        assert!(!has(Some(Observer), false, "JobService/CancelJob"));
        assert!(!has(Some(Admin), false, "AccessService/RenewCertificate"));
        assert!(has(Some(Admin), true, "AccessService/RenewCertificate"));
    }

    #[test]
    fn names_are_those_that_people_know() {
        let row = grpc_row("/ringtune.v1.JobService/CancelJob").unwrap();
        assert_eq!(row.name(), "CancelJob");
        assert!(row.own && row.changes);
        assert!(grpc_row("/ringtune.v1.RingService/Exchange").is_none());
        assert!(grpc_row("/ringtune.v1.ProbeService/DialBack").is_none());
    }
}
