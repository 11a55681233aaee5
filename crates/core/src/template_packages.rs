//! The interface through which sessions request the packages of a template. The crate `servers` implements it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::failure::Failure;
use crate::spec::Volume;
use crate::template::Template;

/// The result of a request: a read-only volume with the virtual environment of the packages.
pub type InstalledPackages = Pin<Box<dyn Future<Output = Result<Volume, Failure>> + Send>>;

/// Returns the packages of a template, and installs them first if needed. Cheap to clone.
///
/// An installation continues if the future is dropped.
#[derive(Clone)]
pub struct TemplatePackages(Arc<dyn Fn(&Template) -> InstalledPackages + Send + Sync>);

impl TemplatePackages {
    pub fn new(install: impl Fn(&Template) -> InstalledPackages + Send + Sync + 'static) -> Self {
        Self(Arc::new(install))
    }

    pub fn installed(&self, template: &Template) -> InstalledPackages {
        (self.0)(template)
    }
}

impl PartialEq for TemplatePackages {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for TemplatePackages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TemplatePackages")
    }
}
