//! The escape suite: every attack of `tests/escape`, in real sandboxes of each user, and once without a sandbox as a
//! control, which proves that the case can fail.
//!
//! Most cases are rows of `table`: a script that reports its own attempts. The others need something to happen on the
//! host while they run, and have a file each.

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
