//! The escape suite: runs every attack of `tests/escape` in real sandboxes of each user, and once without a sandbox as
//! a control, which shows that the case can fail.
//!
//! Most cases are rows of `table`: scripts that report their attempts. The other cases need an action on the host
//! during the attack, and have a file each.

mod beacon;
mod floods;
mod groups;
mod in_flight;
mod killed;
mod leftovers;
mod locks;
mod missing;
mod odd_volumes;
mod residue;
mod table;
