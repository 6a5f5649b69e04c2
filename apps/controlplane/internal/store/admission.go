package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// AdmissionTx is what workspaces may have, and have.
//
// The workspace's row is locked behind the rows of apps and before the heads. A transaction
// that writes claims or the bucket of starts holds it: of two calls that would each use up the
// rest of a quota, the second waits for the first and counts what that one added. Workspaces do
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

	// UsageOf adds up the workspace's apps that are not deleted, but for one (empty:
	// none), by their claims. unsettled are those that run something and whose claim
	// is of something else: their instances and GPUs are not in it.
	UsageOf(workspaceID, but string) (u model.Usage, unsettled int, err error)
	// UnsettledApps are those, by id, with ids above after.
	UnsettledApps(workspaceID, but, after string, limit int) ([]model.App, error)
	// PutClaims inserts or replaces claims.
	PutClaims([]model.Claim) error
}
