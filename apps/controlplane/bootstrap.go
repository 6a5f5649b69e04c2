package controlplane

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/fleet"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type bootstrapFlags struct {
	databaseFlags
	Workspace string   `help:"Name of the workspace." default:"default"`
	Region    []string `help:"Region of the workspace to create. Can be repeated."`
}

// BootstrapConfig names what Bootstrap creates in a fresh installation.
type BootstrapConfig struct {
	MySQLDSN string
	// MySQLCA is a PEM file with the CA of the database's certificate. Empty: the DSN decides.
	MySQLCA   string
	Workspace string
	Regions   []string
	// APIKey and OperatorKey are keys that the installation will accept. An empty key is generated. To repeat a
	// bootstrap, pass the keys that it returned.
	APIKey, OperatorKey string
}

// BootstrapResult holds values that are not shown anywhere else.
type BootstrapResult struct {
	WorkspaceID string `json:"workspace_id"`
	// APIKey has the role owner in the workspace, and OperatorKey the role operator.
	APIKey      string `json:"api_key"`
	OperatorKey string `json:"operator_key"`
	// JoinTokens has a token by name of region. Each is valid for an hour.
	JoinTokens map[string]string `json:"join_tokens"`
}

// joinTokenTTL is how long a bootstrap's tokens are valid.
const joinTokenTTL = time.Hour

func bootstrapCommand(ctx context.Context, f bootstrapFlags, log *slog.Logger) error {
	result, err := bootstrapOn(ctx, f.storeConfig(certfile.NewFiles(log)), BootstrapConfig{Workspace: f.Workspace, Regions: f.Region})
	if err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(result)
}

// Bootstrap migrates the database and creates the missing objects of cfg. It may be run again, and removes nothing.
// It needs no API key, only the DSN, because the first key does not exist yet.
func Bootstrap(ctx context.Context, cfg BootstrapConfig) (BootstrapResult, error) {
	on := databaseFlags{MySQLDSN: cfg.MySQLDSN, mysqlFlags: mysqlFlags{MySQL: certfile.RemoteFlags{CA: cfg.MySQLCA}}}
	return bootstrapOn(ctx, on.storeConfig(nil), cfg)
}

func bootstrapOn(ctx context.Context, on mysql.Config, cfg BootstrapConfig) (BootstrapResult, error) {
	on.MaxOpen = 2
	db, err := mysql.Open(ctx, on)
	if err != nil {
		return BootstrapResult{}, fmt.Errorf("bootstrap: %w", err)
	}
	result, err := bootstrapStore(ctx, db, cfg, time.Now())
	return result, errors.Join(err, db.Close())
}

func bootstrapStore(ctx context.Context, db store.Store, cfg BootstrapConfig, now time.Time) (result BootstrapResult, err error) {
	if cfg.Workspace == "" {
		cfg.Workspace = "default"
	}
	for _, name := range append([]string{cfg.Workspace}, cfg.Regions...) {
		if !ident.ValidName(name) {
			return result, fmt.Errorf("bootstrap: %q is not a name: use lower-case letters, digits and dashes, starting with a letter", name)
		}
	}
	result = BootstrapResult{APIKey: cfg.APIKey, OperatorKey: cfg.OperatorKey, JoinTokens: map[string]string{}}
	for _, value := range []*string{&result.APIKey, &result.OperatorKey} {
		if *value == "" {
			*value = "wl_" + randomText()
		}
	}
	for _, region := range cfg.Regions {
		result.JoinTokens[region] = "wlj_" + randomText()
	}
	err = db.Update(ctx, func(tx store.Tx) error {
		ws, err := tx.GetWorkspaceByName(cfg.Workspace)
		if errors.Is(err, model.ErrNotFound) {
			ws = model.Workspace{ID: ident.New("ws"), Name: cfg.Workspace, CreatedAt: now.UnixMilli(), UpdatedAt: now.UnixMilli(), ResourceVersion: 1}
			err = tx.InsertWorkspace(ws)
		}
		if err != nil {
			return fmt.Errorf("workspace %s: %w", cfg.Workspace, err)
		}
		result.WorkspaceID = ws.ID
		if err := ensureProject(tx, ws.ID, now.UnixMilli()); err != nil {
			return err
		}
		if err := ensureKey(tx, ws.ID, "bootstrap", result.APIKey, windlassv1.Role_ROLE_OWNER, now.UnixMilli()); err != nil {
			return err
		}
		if err := ensureKey(tx, "", "bootstrap", result.OperatorKey, windlassv1.Role_ROLE_OPERATOR, now.UnixMilli()); err != nil {
			return err
		}
		for _, name := range cfg.Regions {
			region, err := tx.GetRegionByName(ws.ID, name)
			if errors.Is(err, model.ErrNotFound) {
				region = model.Region{
					ID: ident.New("reg"), WorkspaceID: ws.ID, Name: name, Status: windlassv1.RegionStatus_REGION_STATUS_PENDING,
					CreatedAt: now.UnixMilli(), UpdatedAt: now.UnixMilli(), ResourceVersion: 1,
				}
				err = tx.InsertRegion(region)
			}
			if err != nil {
				return fmt.Errorf("region %s: %w", name, err)
			}
			token := fleet.NewJoinToken(result.JoinTokens[name], region.ID, now.UnixMilli(), now.Add(joinTokenTTL).UnixMilli())
			if err := tx.InsertJoinToken(token); err != nil {
				return fmt.Errorf("join token of region %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return BootstrapResult{}, fmt.Errorf("bootstrap: %w", err)
	}
	return result, nil
}

func ensureProject(tx store.Tx, workspaceID string, now int64) error {
	project, err := tx.GetProjectByName(workspaceID, "default")
	if errors.Is(err, model.ErrNotFound) {
		project = model.Project{ID: ident.New("prj"), WorkspaceID: workspaceID, Name: "default", CreatedAt: now, UpdatedAt: now, ResourceVersion: 1}
		err = tx.InsertProject(project)
	}
	if err != nil {
		return fmt.Errorf("project default: %w", err)
	}
	_, err = tx.GetEnvironmentByName(workspaceID, project.ID, "production")
	if errors.Is(err, model.ErrNotFound) {
		err = tx.InsertEnvironment(model.Environment{
			ID: ident.New("env"), WorkspaceID: workspaceID, ProjectID: project.ID, Name: "production",
			CreatedAt: now, UpdatedAt: now, ResourceVersion: 1,
		})
	}
	if err != nil {
		return fmt.Errorf("environment production: %w", err)
	}
	return nil
}

// ensureKey inserts the key unless it exists. Keys of earlier bootstraps stay, because they may be in use.
func ensureKey(tx store.Tx, workspaceID, name, value string, role windlassv1.Role, now int64) error {
	hash := model.HashToken(value)
	if _, err := tx.GetAPIKeyByHash(hash); !errors.Is(err, model.ErrNotFound) {
		return err
	}
	id := ident.New("key")
	err := tx.InsertAPIKey(model.APIKey{
		ID: id, WorkspaceID: workspaceID, Name: name + "-" + id[len(id)-6:], Role: role,
		Prefix: value[:min(8, len(value))], Hash: hash, CreatedAt: now,
	})
	if err != nil {
		return fmt.Errorf("key %s: %w", name, err)
	}
	return nil
}

func randomText() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}
