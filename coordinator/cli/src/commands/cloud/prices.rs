//! What machines cost, by a table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Of a month, as bills have it.
const HOURS: f64 = 730.0;

/// Prices in US dollars.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prices {
    date: String,
    region: String,
    vcpu_hour: BTreeMap<String, f64>,
    other: OtherPrices,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherPrices {
    disk_month: f64,
    address_hour: f64,
}

/// Machines of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machines {
    pub(super) count: u32,
    pub(super) kind: String,
    pub(super) disk_gib: u32,
    /// They cost less than the table says.
    pub(super) is_spot: bool,
}

/// What a cluster costs.
#[derive(Debug, Serialize)]
pub(super) struct Cost {
    r#type: &'static str,
    /// Dollars an hour, without machines whose type has no price in the table.
    pub(super) dollars_an_hour: f64,
    /// Types without a price.
    pub(super) unknown: Vec<String>,
    /// Whether it may be less: spot machines.
    pub(super) is_most: bool,
    /// Where and when the prices were so.
    pub(super) prices: String,
}

/// Of all of a cluster's machines: processors, disks, and a public address each.
pub(super) fn cost(table: &str, all: &[Machines]) -> Result<Cost, Error> {
    let wrong = |error: toml::de::Error| Error::JobEnded(format!("the table of prices: {error}"));
    let prices: Prices = toml::from_str(table).map_err(wrong)?;
    let (mut dollars, mut unknown) = (0.0, Vec::new());
    for Machines { count, kind, disk_gib, .. } in all {
        let disk = f64::from(*disk_gib) * prices.other.disk_month / HOURS;
        let known =
            processors(kind).and_then(|(count, family)| Some((count, prices.vcpu_hour.get(&family)?)));
        if known.is_none() && *count > 0 && !unknown.contains(kind) {
            unknown.push(kind.clone());
        }
        let processors = known.map_or(0.0, |(processors, price)| f64::from(processors) * price);
        dollars += f64::from(*count) * (processors + disk + prices.other.address_hour);
    }
    Ok(Cost {
        r#type: "cost",
        dollars_an_hour: (dollars * 1000.0).round() / 1000.0,
        unknown,
        is_most: all.iter().any(|machines| machines.is_spot && machines.count > 0),
        prices: format!("on demand in {}, {}", prices.region, prices.date),
    })
}

/// Processors and family of a type: 16 and `m7i` of `m7i.4xlarge`, 16 and `Ds_v6` of `Standard_D16s_v6`.
fn processors(kind: &str) -> Option<(u32, String)> {
    if let Some(size) = kind.strip_prefix("Standard_") {
        let letters = size.find(|c: char| c.is_ascii_digit())?;
        let end = size[letters..].find(|c: char| !c.is_ascii_digit())? + letters;
        return Some((size[letters..end].parse().ok()?, format!("{}{}", &size[..letters], &size[end..])));
    }
    let (family, size) = kind.split_once('.')?;
    let count = match size {
        "large" => 2,
        "xlarge" => 4,
        size => size.strip_suffix("xlarge")?.parse::<u32>().ok()?.checked_mul(4)?,
    };
    Some((count, family.to_owned()))
}

impl Cost {
    pub(super) fn text(&self) -> String {
        let most = if self.is_most { "at most " } else { "" };
        let (hour, day) = (self.dollars_an_hour, self.dollars_an_hour * 24.0);
        let mut text = format!("{most}${hour:.2} an hour, ${day:.0} a day ({})", self.prices);
        if !self.unknown.is_empty() {
            text.push_str(&format!(
                ", besides the machines of {}, whose price is not in the table",
                self.unknown.join(" and ")
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWS: &str = include_str!("../../../../../deploy/aws/prices.toml");
    const AZURE: &str = include_str!("../../../../../deploy/azure/prices.toml");

    #[test]
    fn a_cluster_costs_its_machines_disks_and_addresses() {
        let machines =
            |count, kind: &str| Machines { count, kind: kind.to_owned(), disk_gib: 100, is_spot: true };
        // 2 x 16 x 0.0504 + 2 x 0.0504, and 3 x (100 x 0.08 / 730 + 0.005).
        let found = cost(AWS, &[machines(1, "m7i.large"), machines(2, "m7i.4xlarge")]).expect("a cost");
        assert!((found.dollars_an_hour - 1.761).abs() < 1e-9, "{found:?}");
        assert!(found.text().starts_with("at most $1.76 an hour, $42 a day (on demand in us-east-1"));
        let other = cost(AWS, &[machines(1, "r7iz.metal-16xl"), machines(0, "x.large")]).expect("a cost");
        assert_eq!(other.unknown, ["r7iz.metal-16xl"]);
        let azure = cost(AZURE, &[machines(1, "Standard_D4s_v5")]).expect("a cost");
        assert!(azure.unknown.is_empty() && azure.dollars_an_hour > 0.19, "{azure:?}");
    }

    #[test]
    fn a_type_says_its_processors() {
        let of = |kind: &str| processors(kind).map(|(count, family)| format!("{count} {family}"));
        for (kind, wanted) in [
            ("m7i.large", Some("2 m7i")),
            ("m7i.48xlarge", Some("192 m7i")),
            ("m7i", None),
            ("Standard_D16s_v6", Some("16 Ds_v6")),
            ("Standard_D2ds_v5", Some("2 Dds_v5")),
            ("Standard_D", None),
        ] {
            assert_eq!(of(kind).as_deref(), wanted, "{kind}");
        }
    }
}
