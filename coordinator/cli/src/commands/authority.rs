//! `ringtune ca`: the cluster's own certificate authority.

use ringtune_proto::v1;
use tonic::Code;

use super::{
    plural,
    reach::client_of,
    table::{facts, print_table, table},
};
use crate::{
    access_arguments::{CaCommand, RetireAuthorityArguments, ShowAuthorityArguments},
    access_objects::{AuthorityObject, RootsObject, role_name},
    client::{Client, ClientError},
    common_arguments::AskArguments,
    error::Error,
    output::{Output, remark, time_text},
};

/// The most holders of old certificates that are named.
const MOST_HOLDERS: usize = 50;

/// Shows, rotates or retires.
pub(super) async fn ca(command: CaCommand) -> Result<(), Error> {
    match command {
        CaCommand::Show(arguments) => show(arguments).await,
        CaCommand::Rotate(arguments) => rotate(arguments).await,
        CaCommand::Retire(arguments) => retire(arguments).await,
    }
}

async fn show(arguments: ShowAuthorityArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    if arguments.pem {
        let pem = client.who_am_i().await?.roots_pem;
        if pem.is_empty() {
            return Err(Error::Usage("this coordinator has no certificates: it encrypts nothing".to_owned()));
        }
        return Ok(output.data(pem.trim_end(), &RootsObject::new(&pem))?);
    }
    print(output, &client.get_authority().await?)
}

fn print(output: Output, authority: &v1::Authority) -> Result<(), Error> {
    if output.is_json() {
        return Ok(output.json(&AuthorityObject::from(authority))?);
    }
    let mut table = table(&["ROOT", "CREATED", "EXPIRES", "CERTIFICATES", "SHA256"]);
    for root in &authority.roots {
        table.add_row([
            root.number.to_string(),
            time_text(root.create_time.as_ref()),
            time_text(root.expire_time.as_ref()),
            root.certificates.to_string(),
            root.sha256.clone(),
        ]);
    }
    output.data(&facts(&[("cluster", authority.cluster.clone())]), &())?;
    print_table(output, &table)
}

async fn rotate(arguments: AskArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let authority = client_of(&arguments.coordinator).await?.rotate_authority().await?;
    print(output, &authority)?;
    remark(&what_comes_next(&authority));
    Ok(())
}

/// What happens after a rotation.
fn what_comes_next(authority: &v1::Authority) -> String {
    let [.., old, new] = authority.roots.as_slice() else {
        return "the new root signs from now on".to_owned();
    };
    format!(
        "root {} signs from now on, and root {} is trusted until it is retired; nothing was interrupted\n\
         workers get new certificates within minutes; people get theirs with one of their next commands, or at once by\n  \
         ringtune cert renew\n\
         when `ringtune ca show` counts no certificate of root {}:\n  \
         ringtune ca retire",
        new.number, old.number, old.number
    )
}

async fn retire(arguments: RetireAuthorityArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    match client.retire_authority(arguments.force).await {
        Ok(authority) => {
            print(output, &authority)?;
            remark("the older root is trusted no more; who still has a certificate of it needs a new token");
            Ok(())
        }
        Err(error) if error.code() == Some(Code::FailedPrecondition) => {
            let holders = Box::pin(holders(&client)).await.unwrap_or_default();
            match holders.is_empty() {
                true => Err(error.into()),
                false => Err(Error::JobEnded(format!("{error}\n{holders}"))),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Who still has a certificate of the older root, a line each; empty: nobody.
async fn holders(client: &Client) -> Result<String, ClientError> {
    let authority = client.get_authority().await?;
    let [old, .., _] = authority.roots.as_slice() else { return Ok(String::new()) };
    Ok(holders_text(&client.list_certificates().await?, old.number))
}

fn holders_text(certificates: &[v1::Certificate], root: i32) -> String {
    let held: Vec<_> = certificates
        .iter()
        .filter(|certificate| certificate.root == root && certificate.revoke_time.is_none())
        .collect();
    if held.is_empty() {
        return String::new();
    }
    let mut lines: Vec<String> = held
        .iter()
        .take(MOST_HOLDERS)
        .map(|certificate| {
            let member = certificate.member.clone().unwrap_or_default();
            let until = time_text(certificate.expire_time.as_ref());
            format!("  {} {} until {until}", role_name(member.role), member.name)
        })
        .collect();
    if let Some(more) = held.len().checked_sub(MOST_HOLDERS).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more: ringtune cert list"));
    }
    let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
    format!(
        "{count} {} of root {root}:\n{}\nthey end by themselves, or: ringtune ca retire --force",
        plural(count, "certificate"),
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str, root: i32, revoked: bool) -> v1::Certificate {
        v1::Certificate {
            member: Some(v1::Member { role: v1::Role::Submitter as i32, name: name.to_owned() }),
            root,
            revoke_time: revoked.then(prost_types::Timestamp::default),
            ..v1::Certificate::default()
        }
    }

    #[test]
    fn those_who_still_have_an_old_certificate_are_named() {
        let mut all = vec![certificate("ada", 1, false), certificate("bob", 2, false)];
        all.push(certificate("eve", 1, true));
        let text = holders_text(&all, 1);
        assert!(text.starts_with("1 certificate of root 1:\n  submitter ada until"), "{text}");
        assert!(!text.contains("bob") && !text.contains("eve") && text.contains("--force"), "{text}");
        assert_eq!(holders_text(&all, 3), "");
        let many: Vec<_> = (0..60).map(|number| certificate(&number.to_string(), 1, false)).collect();
        let text = holders_text(&many, 1);
        assert!(text.starts_with("60 certificates") && text.contains("and 10 more"), "{text}");
    }

    #[test]
    fn a_rotation_says_what_comes_next() {
        let root = |number| v1::Root { number, ..v1::Root::default() };
        let authority = v1::Authority { roots: vec![root(3), root(4)], ..v1::Authority::default() };
        let text = what_comes_next(&authority);
        assert!(text.starts_with("root 4 signs from now on, and root 3 is trusted"), "{text}");
        assert!(text.ends_with("ringtune ca retire"), "{text}");
    }
}
