//! The escape suite: every attack of `tests/escape`, tried inside real sandboxes of every kind of user, and once
//! without a sandbox, which proves that the case can fail.
//!
//! Most cases are rows of `table`: a script whose lines are judged by `judge`. The others need something to happen
//! outside while they run, and have a file each.

mod beacon;
mod floods;
mod groups;
mod in_flight;
mod judge;
mod killed;
mod leftovers;
mod locks;
mod missing;
mod odd_volumes;
mod report;
mod residue;
mod run;
mod servers;
mod sibling;
mod stage;
mod table;
mod volumes;
