package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// AdmissionTx has the queries of the limits and the usage of workspaces.
//
// The workspace's row is locked after the rows of apps and before the heads. A transaction that
// writes claims or the bucket of starts holds the lock. So if each of two calls would use up the
// rest of a quota, the second waits for the first and counts what the first added. Workspaces do
// not wait for each other.
type AdmissionTx interface {
	// LockAdmission locks the workspace to the end of the transaction.
	LockAdmission(workspaceID string) (model.Admission, error)
	// GetAdmission is LockAdmission without the lock.
	GetAdmission(workspaceID string) (model.Admission, error)
	// PutLimits stores a.Own, UpdatedAt and ResourceVersion as they are.
	PutLimits(a model.Admission) error
	// PutStanding stores a.FullAt and a.Ceiling as they are.
	PutStanding(a model.Admission) error

	// UsageOf adds up the claims of the workspace's apps that are not deleted, except the app exceptAppID. If
	// exceptAppID is empty, no app is left out. unsettled counts running apps whose claim is missing or outdated.
	// Their instances and GPUs are not in u.
	UsageOf(workspaceID, exceptAppID string) (u model.Usage, unsettled int, err error)
	// UnsettledApps returns the unsettled apps with an id above after, by id.
	UnsettledApps(workspaceID, exceptAppID, after string, limit int) ([]model.App, error)
	// PutClaims inserts or replaces claims.
	PutClaims([]model.Claim) error
}
