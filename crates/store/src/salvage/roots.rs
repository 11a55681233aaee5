//! Where the tables of a broken database begin.
//!
//! Its schema says so. Where that is lost, a table is looked for at the page where a new database has it. That is sure
//! for the tables of the first format, which are made before anything is in the file. Those of later formats lie
//! elsewhere if there were rows already when they were made; then the pages of a new one have something else on them,
//! which shows, and these tables are given up: better lost than with the rows of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::Path;

use super::super::StoreError;
use super::super::database::PAGE_BYTES;
use super::super::migrations::{Entry, MIGRATIONS, schema_of_new};
use super::scratch::Scratch;
use super::table::{TABLES, Table};

/// The header of a database is before the first page's own.
const FIRST_OFFSET: usize = 100;

/// Entries of the schema that are looked for.
const MOST_ENTRIES: i64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    Table,
    Index,
}

/// What can be told of the pages without knowing what they are for.
#[derive(Default)]
struct Pages {
    /// Those that are whole, by number.
    trees: BTreeMap<u32, Tree>,
    /// Those to which others refer, which therefore are not where a tree begins.
    children: BTreeSet<u32>,
}

/// The tables that were found, and the pages where they begin.
pub(super) fn find(scratch: &Scratch) -> Result<Vec<(&'static Table, u32)>, StoreError> {
    let read = Pages::read(scratch.path());
    let pages = read.map_err(|source| StoreError::Directory { path: scratch.path().to_owned(), source })?;
    let (first, new) = (schema_of_new(1)?, schema_of_new(MIGRATIONS.len())?);
    let named = named(scratch, &new)?;
    let is_like_new = new.iter().filter(|(_, root)| *root > 0).all(|(entry, root)| {
        pages.may_begin(*root, tree_of(entry)) && named.get(&entry.name).is_none_or(|named| named == root)
    });
    let find = |table: &'static Table| {
        let at = |schema: &[(Entry, u32)]| {
            schema.iter().find(|(entry, _)| entry.kind == "table" && entry.name == table.name).map(|(_, root)| *root)
        };
        let sure = || at(&first).or_else(|| at(&new).filter(|_| is_like_new)).filter(|root| pages.begins(*root));
        let root = named.get(table.name).copied().filter(|root| pages.is_table(*root)).or_else(sure)?;
        Some((table, root))
    };
    Ok(TABLES.iter().filter_map(find).collect())
}

/// What its own schema names, where it is exactly as this program makes it. Of two at one page, one is wrong.
fn named(scratch: &Scratch, new: &[(Entry, u32)]) -> Result<BTreeMap<String, u32>, StoreError> {
    let connection = scratch.connection()?;
    let mut named = BTreeMap::new();
    // One by one, since a page that is lost hides only its own.
    for number in 1..=MOST_ENTRIES {
        let select = "SELECT type, name, tbl_name, sql, rootpage FROM sqlite_schema WHERE rowid = ?1";
        let found = connection.prepare_cached(select).and_then(|mut select| {
            select.query_row([number], |row| {
                let entry = Entry { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: row.get(3)? };
                Ok((entry, row.get::<_, u32>(4)?))
            })
        });
        let Ok((entry, root)) = found else { continue };
        if root > 1 && new.iter().any(|(known, _)| *known == entry) {
            named.insert(entry.name, root);
        }
    }
    let mut uses = BTreeMap::<u32, usize>::new();
    for root in named.values() {
        *uses.entry(*root).or_default() += 1;
    }
    named.retain(|_, root| uses[root] == 1);
    Ok(named)
}

fn tree_of(entry: &Entry) -> Tree {
    if entry.kind == "index" { Tree::Index } else { Tree::Table }
}

impl Pages {
    fn read(path: &Path) -> std::io::Result<Self> {
        let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
        let (mut pages, mut page) = (Self::default(), [0; PAGE_BYTES]);
        for number in 1.. {
            match file.read_exact(&mut page) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                read => read?,
            }
            let start = if number == 1 { FIRST_OFFSET } else { 0 };
            if let Some((tree, children)) = look_at(&page, start) {
                pages.trees.insert(number, tree);
                pages.children.extend(children);
            }
        }
        Ok(pages)
    }

    fn is_table(&self, number: u32) -> bool {
        self.trees.get(&number) == Some(&Tree::Table)
    }

    /// Whether a table begins there, as far as can be told.
    fn begins(&self, number: u32) -> bool {
        self.is_table(number) && !self.children.contains(&number)
    }

    /// Whether nothing says that it is something else that lies there.
    fn may_begin(&self, number: u32, tree: Tree) -> bool {
        self.trees.get(&number).is_none_or(|found| *found == tree) && !self.children.contains(&number)
    }
}

/// What tree a page is of, and the pages below it; nothing if it cannot be a page of a tree.
fn look_at(page: &[u8; PAGE_BYTES], start: usize) -> Option<(Tree, Vec<u32>)> {
    let short = |at: usize| page.get(at..at + 2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
    let child = |at: usize| page.get(at..at + 4).map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]));
    let (tree, is_leaf) = match page[start] {
        2 => (Tree::Index, false),
        5 => (Tree::Table, false),
        10 => (Tree::Index, true),
        13 => (Tree::Table, true),
        _ => return None,
    };
    let (cells, content) = (short(start + 3)?, short(start + 5)?);
    let pointers = start + if is_leaf { 8 } else { 12 };
    if content > PAGE_BYTES || pointers + 2 * cells > content {
        return None;
    }
    let places = (0..cells).map(|cell| short(pointers + 2 * cell).filter(|place| *place >= content));
    let places = places.collect::<Option<Vec<_>>>()?;
    if is_leaf {
        return Some((tree, Vec::new()));
    }
    let children = places.into_iter().chain([start + 8]).map(child);
    Some((tree, children.collect::<Option<_>>()?))
}
