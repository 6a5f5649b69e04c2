package mysql

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// prefetched has answers to queries that each batch member runs for its own app. The first member's query
// runs for the apps of all members. There are answers for members that find and lock an app and its rows, and read
// what the app runs and what its regions report.
//
// An answer is given once, to the first member that names its app, in that member's first part, if the
// transaction has not changed the app. For a second read or a second member, the query runs again. It also runs for
// every member after a write that is not deferred.
type prefetched struct {
	// names and apps are apps by name and by id. deployments are the deployments that the apps run.
	names, apps, deployments subjects
	// known are the apps that were found, by id.
	known map[string]model.App
}

// subjects are the objects that members query.
type subjects struct {
	// first is the first member that queries each subject.
	first map[string]int
	// answers are rows by kind of query and subject. nil: already given.
	answers map[string]map[string]any
}

func newPrefetched(requests []*request) *prefetched {
	none := func() subjects { return subjects{first: map[string]int{}, answers: map[string]map[string]any{}} }
	f := &prefetched{names: none(), apps: none(), deployments: none(), known: map[string]model.App{}}
	for i, r := range requests {
		if ident.Valid("app", r.app) {
			f.apps.expectSubject(r.app, i)
		} else {
			f.names.expectSubject(r.app, i)
		}
	}
	return f
}

// expectSubject registers a subject that the member will query. An empty id is ignored.
func (s *subjects) expectSubject(id string, member int) {
	if _, ok := s.first[id]; !ok && id != "" {
		s.first[id] = member
	}
}

// registerApps registers apps that members queried by name, or locked.
func (f *prefetched) registerApps(apps []model.App, by *subjects, subject func(model.App) string) {
	for _, a := range apps {
		member := by.first[subject(a)]
		f.apps.expectSubject(a.ID, member)
		f.deployments.expectSubject(a.LiveDeploymentID, member)
		f.known[a.ID] = a
	}
}

// forgetApp removes an app that changed, so that later reads of the app run their own queries.
func (f *prefetched) forgetApp(appID string) {
	if f != nil {
		was := f.known[appID]
		delete(f.names.first, was.Name)
		delete(f.apps.first, appID)
		delete(f.deployments.first, was.LiveDeploymentID)
	}
}

// theNames, theApps and theDeployments select the subjects of prefetchRows.
func theNames(f *prefetched) *subjects       { return &f.names }
func theApps(f *prefetched) *subjects        { return &f.apps }
func theDeployments(f *prefetched) *subjects { return &f.deployments }

// prefetchRows answers the current member's query for one subject. The first such query runs for the subjects of
// later members, too. If ok is false, the member queries for itself.
func prefetchRows[R any](t *tx, about func(*prefetched) *subjects, kind string, ids []string, idOf func(R) string, ask func(ids []string) ([]R, error)) (rows []R, ok bool, err error) {
	c := t.shared
	if c == nil || c.prefetched == nil || len(ids) != 1 {
		return nil, false, nil
	}
	s, id := about(c.prefetched), ids[0]
	if first, ok := s.first[id]; !ok || first != c.member {
		return nil, false, nil
	}
	answers := s.answers[kind]
	if answers == nil {
		answers = map[string]any{}
		s.answers[kind] = answers
	}
	if _, asked := answers[id]; !asked {
		var all []string
		for other, first := range s.first {
			if _, asked := answers[other]; first >= c.member && !asked {
				all = append(all, other)
			}
		}
		slices.Sort(all)
		found, err := ask(all)
		if err != nil {
			return nil, true, err
		}
		each := map[string][]R{}
		for _, r := range found {
			each[idOf(r)] = append(each[idOf(r)], r)
		}
		for _, other := range all {
			answers[other] = each[other]
		}
	}
	rows, ok = answers[id].([]R)
	answers[id] = nil
	return rows, ok, nil
}
