//! The keys that are passed on to outside systems.

use uuid::Uuid;

use crate::ids::{self, Invalid};

/// Never changes: else a retry would not be recognised as one.
const NAMESPACE: Uuid = Uuid::from_u128(0x5b2f_9c1e_7a4d_4e0b_9f3a_6c8d_1e2f_4a70);

/// The identity of an effect: a name of at most 200 bytes and a key of at most 512, without control characters.
pub fn check(name: &str, logical_key: &str) -> Result<(), Invalid> {
    ids::check_name("name", name)?;
    ids::check_id("logical_key", logical_key)
}

/// The idempotency key for outside systems: the same for every attempt, another one for undoing, and never the same for two
/// organizations. Lengths keep ("a:b", "c") and ("a", "b:c") apart.
pub fn idempotency_key(
    organization: Option<&str>,
    name: &str,
    logical_key: &str,
    is_compensation: bool,
) -> [u8; 16] {
    let organization = organization.map_or_else(String::new, |id| format!("{}:{id}:", id.len()));
    let prefix = if is_compensation { "compensate:" } else { "" };
    let material = format!("{prefix}{organization}{}:{name}:{logical_key}", name.len());
    Uuid::new_v5(&NAMESPACE, material.as_bytes()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(organization: Option<&str>, name: &str, key: &str, compensation: bool) -> String {
        Uuid::from_bytes(idempotency_key(organization, name, key, compensation)).to_string()
    }

    #[test]
    fn the_published_vectors() {
        assert_eq!(
            key(None, "payment.charge", "order_5824", false),
            "ab211c89-566b-5012-bd33-3a7f81351a08"
        );
        assert_eq!(
            key(None, "payment.charge", "order_5824", true),
            "46877ef3-8997-5e94-a1ac-4be0bd2782b4"
        );
    }

    #[test]
    fn nothing_collides() {
        let all = [
            key(None, "a:b", "c", false),
            key(None, "a", "b:c", false),
            key(None, "a", "b:c", true),
            key(Some("acme"), "a", "b:c", false),
            key(Some("acme"), "a", "b:c", true),
            key(Some("4:acme"), "a", "b:c", false),
            key(Some("other"), "a", "b:c", false),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn an_organization_is_a_prefix_of_the_name() {
        let material = "4:acme:14:payment.charge:order_5824";
        assert_eq!(
            key(Some("acme"), "payment.charge", "order_5824", false),
            Uuid::new_v5(&NAMESPACE, material.as_bytes()).to_string()
        );
    }

    #[test]
    fn identities_are_bounded() {
        assert!(check("payment charge", " order:1 ").is_ok());
        assert!(check(&"n".repeat(200), &"k".repeat(512)).is_ok());
        for (name, key) in [
            ("", "k"),
            ("n", ""),
            ("n\n", "k"),
            ("n", "k\u{9f}"),
            (&"n".repeat(201), "k"),
            ("n", &"é".repeat(257)),
        ] {
            assert!(check(name, key).is_err(), "{name:?} {key:?}");
        }
    }
}
