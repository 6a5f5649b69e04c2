package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/appspec"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// checkRegions fails on a region that the workspace may not use.
func (c specMutation) checkRegions(spec *windlassv1.DeploymentSpec, field string) error {
	known, err := c.ListRegions(c.workspaceID, model.Page{Limit: maxKnownRegions})
	if err != nil {
		return fmt.Errorf("list regions: %w", err)
	}
	for i, name := range spec.GetRegions() {
		if slices.ContainsFunc(known, func(r model.Region) bool { return r.Name == name }) {
			continue
		}
		if len(known) == maxKnownRegions {
			if _, err := c.GetRegionByName(c.workspaceID, name); err == nil {
				continue
			} else if !errors.Is(err, model.ErrNotFound) {
				return fmt.Errorf("read region %s: %w", name, err)
			}
		}
		if err := c.hold(unknownRegion(fmt.Sprintf("%s.regions[%d]", field, i), name, known)); err != nil {
			return err
		}
	}
	return nil
}

// maxKnownRegions are read at once; a workspace with more has its names looked up
// one by one.
const maxKnownRegions = 500

func unknownRegion(field, name string, known []model.Region) error {
	fix := "The workspace has no region yet: create one with `windlass region create`."
	if len(known) > 0 {
		var names []string
		for _, r := range known[:min(len(known), 20)] {
			names = append(names, r.Name)
		}
		fix = "Regions of the workspace: " + strings.Join(names, ", ") + "."
	}
	return rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, Field: field, Fix: fix,
	}, fmt.Sprintf("region %q is unknown to the workspace", name))
}

// checkSecretsExist fails on a secret that the environment does not have.
func (c specMutation) checkSecretsExist(environmentID string, spec *windlassv1.DeploymentSpec, field string) error {
	_, err := c.secretVersions(environmentID, spec, field)
	return err
}

// secretVersions are the newest of the secrets that the spec names. It fails on one that the
// environment does not have.
func (c specMutation) secretVersions(environmentID string, spec *windlassv1.DeploymentSpec, field string) (map[string]int32, error) {
	names, fields := appspec.SecretsOf(spec, field)
	if len(names) == 0 {
		return nil, nil
	}
	versions, err := c.SecretVersions(environmentID, names)
	if err != nil {
		return nil, fmt.Errorf("read secrets of environment %s: %w", environmentID, err)
	}
	for i, name := range names {
		if versions[name] != 0 {
			continue
		}
		if err := c.hold(unknownSecret(fields[i], name)); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

func unknownSecret(field, name string) error {
	return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, Field: field,
		Fix: "Set it with `windlass secret set`, then deploy again.",
	}, fmt.Sprintf("the environment has no secret %q", name))
}
