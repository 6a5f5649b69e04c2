package layout

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// workflowFaults returns the faults of a workflow of GitHub Actions. Each action must be named by its commit, because a
// tag can be moved to other code. The workflow must state its rights, and they must only allow reading.
func workflowFaults(text []byte) []string {
	var w struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			Permissions map[string]string
			Uses        string
			Steps       []struct{ Uses string }
		}
	}
	if err := yaml.Unmarshal(text, &w); err != nil {
		return []string{err.Error()}
	}
	var faults []string
	uses := func(action string) {
		_, ref, _ := strings.Cut(action, "@")
		if action != "" && !strings.HasPrefix(action, "./") && (len(ref) != 40 || strings.Trim(ref, "0123456789abcdef") != "") {
			faults = append(faults, action+": name the action by its commit")
		}
	}
	if w.Permissions == nil {
		faults = append(faults, "permissions: state them: a workflow without them gets the permissions of the repository")
	}
	rights := []map[string]string{w.Permissions}
	for _, job := range w.Jobs {
		uses(job.Uses)
		for _, step := range job.Steps {
			uses(step.Uses)
		}
		rights = append(rights, job.Permissions)
	}
	for _, of := range rights {
		for scope, right := range of {
			if right != "read" && right != "none" {
				faults = append(faults, "permissions."+scope+": "+right+" allows more than reading")
			}
		}
	}
	return faults
}

func TestWorkflows_UseActionsByCommitAndOnlyRead(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	seen := 0
	for _, pattern := range []string{".github/workflows/*.y*ml", "deployments/examples/github/*.y*ml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Empty(t, workflowFaults(text), file)
			seen++
		}
	}
	require.Positive(t, seen)
	require.ElementsMatch(t, []string{"actions/checkout@v4: name the action by its commit", "permissions.contents: write allows more than reading"},
		workflowFaults([]byte("permissions: {contents: write}\njobs: {a: {steps: [{uses: actions/checkout@v4}, {uses: ./here}]}}\n")))
	require.Len(t, workflowFaults([]byte("jobs: {}\n")), 1)
}

// TestNPM_PackagesHaveDigests checks that each npm project has a lock file with a digest for each package of the registry.
func TestNPM_PackagesHaveDigests(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	projects := 0
	for _, pattern := range []string{"apps/*/package.json", "docs/package.json", ".ci/npm/*/package.json", "deployments/examples/*/package.json"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "package-lock.json"))
			require.NoError(t, err)
			var lock struct {
				Packages map[string]struct {
					Integrity string
					Link      bool
				}
			}
			require.NoError(t, json.Unmarshal(text, &lock), file)
			require.NotEmpty(t, lock.Packages, file)
			for name, p := range lock.Packages {
				if name != "" && !p.Link {
					require.Regexp(t, `^sha(256|384|512)-`, p.Integrity, "%s: %s", file, name)
				}
			}
			projects++
		}
	}
	require.GreaterOrEqual(t, projects, 5)
}
