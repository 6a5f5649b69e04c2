package model

// Page selects the rows after a cursor, at most Limit.
type Page struct {
	After string // sort key of the last row seen, empty for the first page
	Limit int
}

// InstanceFilter selects instances; empty fields mean any.
type InstanceFilter struct {
	WorkspaceID, AppID, DeploymentID, RegionID string
	IncludeTerminated                          bool
}
