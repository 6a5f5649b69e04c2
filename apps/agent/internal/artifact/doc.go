// Package artifact fetches the files of models, and keeps them for the servers of this host.
//
//	reference --> source (https, s3, oci) --> partial files --> digest --> unpacked --> files
//
// A source and what it serves are not trusted. The digest of the reference decides whether the files
// are the right ones.
//
// Invariants:
//
//   - A directory of files is complete and verified, because it is renamed to its place last.
//   - Connections go to public addresses by TLS, and to networks that the operator allows. Each
//     address is checked at the connection, so redirects and DNS answers cannot lead elsewhere.
//   - Names in archives, lists and manifests never lead out of the artifact's directory.
//   - Files of one scope are not used for another one, because other tenants may not have access
//     to the source.
package artifact
