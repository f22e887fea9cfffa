//! `ringtune token`: the lines of text that let workers and people in.

use std::{collections::BTreeMap, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use ringtune_proto::v1::{self, create_token_request::Kind};
use ringtune_security::Role;

use super::{
    reach::{client_of, reach},
    table::{print_table, table},
};
use crate::{
    access_arguments::{CreateTokenArguments, RevokeTokenArguments, TokenCommand},
    access_objects::{RevokedTokenObject, TokenObject, kind_name, role_name, wire_role},
    client::CoordinatorUrl,
    common_arguments::OutputArguments,
    error::Error,
    kubernetes::ServiceAccount,
    output::{Output, remark, time_text},
};

/// Between two tries to keep a token in a Secret.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// As the coordinator has it.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(60);

/// Makes, lists or revokes.
pub(super) async fn token(command: TokenCommand) -> Result<(), Error> {
    match command {
        TokenCommand::Create(arguments) => create(arguments).await,
        TokenCommand::List(arguments) => {
            let tokens = client_of(&arguments.coordinator).await?.list_tokens().await?;
            list(&tokens, arguments.output)
        }
        TokenCommand::Revoke(arguments) => revoke(arguments).await,
    }
}

async fn create(arguments: CreateTokenArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let wanted = request(&arguments)?;
    if let Some(secret) = &arguments.kubernetes_secret {
        return keep_in_secret(secret, &wanted, &arguments).await;
    }
    let reached = reach(&arguments.ask.coordinator).await?;
    let (token, secret) = reached.client.create_token(wanted).await?;
    output.data(&secret, &TokenObject::created(&token, &secret))?;
    remark(&how_to_use(&token, &address_for_others(&reached.url, &host_name())));
    Ok(())
}

/// Makes a token and writes it into a Secret, over and over if it is to be renewed.
async fn keep_in_secret(
    secret: &str,
    wanted: &v1::CreateTokenRequest,
    arguments: &CreateTokenArguments,
) -> Result<(), Error> {
    let account = ServiceAccount::of_this_pod(&arguments.service_account)?;
    let mut retrying = arguments.renew;
    loop {
        // 1. A coordinator that begins beside this command is not there yet.
        let make = || async {
            let reached = reach(&arguments.ask.coordinator).await?;
            let (token, line) = reached.client.create_token(wanted.clone()).await?;
            Ok((token, line, reached.client.who_am_i().await?.roots_pem))
        };
        let (token, line, roots) = persist(make, retrying).await?;
        // 2. The same token, however often the API server has to be asked.
        let entries = BTreeMap::from([("token", line), ("ca.pem", roots)]);
        persist(async || Ok(account.write(secret, &entries).await?), retrying).await?;
        let until = time_text(token.expire_time.as_ref());
        remark(&format!("token {} is in Secret {secret}, good until {until}", token.token_id));
        if !arguments.renew {
            return Ok(());
        }
        // 3. Whoever reads it just before it is replaced has half of its time to use it.
        tokio::time::sleep(lifetime(&token) / 2).await;
        retrying = true;
    }
}

/// From its beginning to its end.
fn lifetime(token: &v1::Token) -> Duration {
    let seconds = |time: Option<&prost_types::Timestamp>| time.map_or(0, |time| time.seconds);
    let span = seconds(token.expire_time.as_ref()) - seconds(token.create_time.as_ref());
    Duration::from_secs(u64::try_from(span).unwrap_or(0)).max(SHORTEST_LIFETIME)
}

/// Does what can fail, again and again if that is wanted; says why it failed.
async fn persist<T, F>(work: impl Fn() -> F, retrying: bool) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let delays = ExponentialBuilder::default().with_max_delay(LONGEST_DELAY).without_max_times();
    let again = |error: &Error, delay: Duration| {
        remark(&format!("warning: {error}; trying again in {} s", delay.as_secs()));
    };
    work.retry(delays).when(|_| retrying).notify(again).await
}

/// What the command line asks for.
fn request(arguments: &CreateTokenArguments) -> Result<v1::CreateTokenRequest, Error> {
    let wrong = |text: &str| Err(Error::Usage(text.to_owned()));
    let name = arguments.name.clone().unwrap_or_default();
    match (arguments.role, name.is_empty()) {
        (Role::Worker, _) if arguments.access => {
            return wrong(
                "--access: workers have certificates; leave it out, and the worker joins with the token",
            );
        }
        (Role::Worker, false) => return wrong("--name: a worker is named by its own id; leave it out"),
        (Role::Worker, true) => {}
        (_, true) => return wrong("--name NAME is missing: whose token is it?"),
        (role, false) => {
            ringtune_security::identity::check_name(role, &name)
                .map_err(|error| Error::Usage(format!("--name: {error}")))?;
        }
    }
    let ttl = arguments.ttl.map(prost_types::Duration::try_from).transpose();
    Ok(v1::CreateTokenRequest {
        kind: if arguments.access { Kind::Access } else { Kind::Join } as i32,
        role: wire_role(arguments.role) as i32,
        name,
        ttl: ttl.map_err(|_| Error::Usage("--ttl: it is too long".to_owned()))?,
        uses: arguments.uses.map_or(0, i32::from),
    })
}

/// What to do with a new token. Does not show it: what goes to stderr is often kept in logs.
fn how_to_use(token: &v1::Token, url: &CoordinatorUrl) -> String {
    let until = time_text(token.expire_time.as_ref());
    let id = &token.token_id;
    if token.kind() == Kind::Access {
        return format!(
            "token {id} is good for calls as {} {} until {until}; a program that uses it gets\n  \
             RINGTUNE_COORDINATOR={url} RINGTUNE_TOKEN_FILE=FILE RINGTUNE_CA=ca.pem\n\
             or sends `authorization: Bearer TOKEN`; ca.pem comes from\n  \
             ringtune ca show --pem > ca.pem",
            role_name(token.role),
            token.name
        );
    }
    let uses = token.uses_left.max(1);
    if token.role() == v1::Role::Worker {
        let count = if uses == 1 { "one worker".to_owned() } else { format!("{uses} workers") };
        return format!(
            "token {id} lets {count} join until {until}; on the worker's machine, with the line above as TOKEN:\n  \
             ringtune-worker --coordinator {url} --listen ITS-ADDRESS:7080 --join TOKEN"
        );
    }
    let times = if uses == 1 { "once".to_owned() } else { format!("{uses} times") };
    format!(
        "token {id} lets {} log in as {} {times} until {until}; the command there asks for it:\n  ringtune login {url}",
        token.name,
        role_name(token.role)
    )
}

/// A coordinator that is called on its own machine has another address for others.
pub(super) fn address_for_others(url: &CoordinatorUrl, host: &str) -> CoordinatorUrl {
    if url.is_loopback() && url.is_secure() && !host.is_empty() { url.at_host(host) } else { url.clone() }
}

/// This machine's.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn list(tokens: &[v1::Token], output: OutputArguments) -> Result<(), Error> {
    let output = Output::new(output.output);
    if output.is_json() {
        return tokens.iter().try_for_each(|token| Ok(output.json(&TokenObject::from(token))?));
    }
    if tokens.is_empty() {
        remark("no tokens; `ringtune token create --role worker` makes one");
        return Ok(());
    }
    let mut table = table(&["TOKEN", "KIND", "ROLE", "NAME", "USES", "CREATED", "EXPIRES", "BY"]);
    for token in tokens {
        let is_join = token.kind() == Kind::Join;
        table.add_row([
            token.token_id.clone(),
            kind_name(token.kind).to_owned(),
            role_name(token.role).to_owned(),
            token.name.clone(),
            if is_join { token.uses_left.to_string() } else { String::new() },
            time_text(token.create_time.as_ref()),
            time_text(token.expire_time.as_ref()),
            token.creator.clone(),
        ]);
    }
    print_table(output, &table)
}

async fn revoke(arguments: RevokeTokenArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let found = client_of(&arguments.ask.coordinator).await?.revoke_token(arguments.token).await?;
    if found == Some(false) {
        let token = arguments.token;
        return Err(Error::Usage(format!("there is no token {token}; `ringtune token list` shows them")));
    }
    output.json(&RevokedTokenObject::new(arguments.token))?;
    remark("revoked; who has joined with it stays until `ringtune cert revoke`");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn asked(arguments: &str) -> Result<v1::CreateTokenRequest, String> {
        let words = ["ringtune", "token", "create"].into_iter().chain(arguments.split(' '));
        match Arguments::try_parse_from(words).expect(arguments).command {
            Command::Token(TokenCommand::Create(create)) => {
                request(&create).map_err(|error| error.to_string())
            }
            _ => panic!("not create"),
        }
    }

    #[test]
    fn what_is_asked_for_is_sent() {
        let worker = asked("--role worker --ttl 2h --uses 3").expect("right");
        let ttl = Some(prost_types::Duration { seconds: 7200, nanos: 0 });
        let (kind, role) = (Kind::Join as i32, v1::Role::Worker as i32);
        assert_eq!(worker, v1::CreateTokenRequest { kind, role, name: String::new(), ttl, uses: 3 });
        let ada = asked("--role observer --name ada --access").expect("right");
        let (kind, role) = (Kind::Access as i32, v1::Role::Observer as i32);
        assert_eq!(ada, v1::CreateTokenRequest { kind, role, name: "ada".into(), ttl: None, uses: 0 });
        for (wrong, says) in [
            ("--role worker --access", "--access"),
            ("--role worker --name ada", "--name"),
            ("--role submitter", "--name NAME is missing"),
            ("--role submitter --name=", "--name NAME is missing"),
        ] {
            let problem = asked(wrong).expect_err(wrong);
            assert!(problem.contains(says), "{wrong}: {problem}");
        }
        let long = asked(&format!("--role admin --name {}", "x".repeat(101))).expect_err("long");
        assert!(long.contains("--name") && long.contains("100 bytes"), "{long}");
    }

    #[test]
    fn the_next_command_is_said_without_the_secret() {
        let url: CoordinatorUrl = "https://127.0.0.1:9".parse().expect("a URL");
        let url = address_for_others(&url, "head-node");
        let token = |kind: Kind, role: v1::Role, uses_left| v1::Token {
            kind: kind as i32,
            role: role as i32,
            name: "ada".into(),
            uses_left,
            ..v1::Token::default()
        };
        let says = |kind, role, uses, parts: &[&str]| {
            let text = how_to_use(&token(kind, role, uses), &url);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        let join = "ringtune-worker --coordinator https://head-node:9 --listen ITS-ADDRESS:7080 --join TOKEN";
        says(Kind::Join, v1::Role::Worker, 1, &["one worker", join]);
        says(Kind::Join, v1::Role::Worker, 3, &["3 workers", join]);
        says(Kind::Join, v1::Role::Admin, 1, &["as admin once", "ringtune login https://head-node:9"]);
        says(Kind::Access, v1::Role::Observer, 0, &["observer ada", "RINGTUNE_TOKEN_FILE", "ca show --pem"]);
        let elsewhere: CoordinatorUrl = "https://node".parse().expect("a URL");
        assert_eq!(address_for_others(&elsewhere, "head-node"), elsewhere);
    }
}
