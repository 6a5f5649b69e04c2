// Package loader makes servers load and unload models.
//
// Servers are not trusted. The loader calls only the instance's address as the runtime reports it,
// follows no redirect, and limits the size of each answer.
package loader
