package cli

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/plural"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	// Limits of a bundle's size. A bundle is small, because people send it by mail.
	bundleApps    = 100
	bundleItems   = 5000
	bundleHistory = 200
	bundleMetrics = 16 << 20
)

// bundle is the archive that is being created. A call that fails is recorded in errors and does not end the
// command, because a bundle is needed when something is broken.
type bundle struct {
	folder   string
	at       time.Time
	redactor redactor
	files    []bundleFile
	errors   []string
}

type bundleFile struct {
	name string
	data []byte
}

func (b *bundle) addFile(name string, data []byte) {
	b.files = append(b.files, bundleFile{name, data})
}

func (b *bundle) addError(what string, err error) {
	b.errors = append(b.errors, b.redactor.redactText(what+": "+firstLine(Explain(err))))
}

// addJSON adds a value as redacted JSON.
func (b *bundle) addJSON(name string, value any) {
	data, err := json.Marshal(value)
	if err == nil {
		data, err = b.redactor.redactJSON(data)
	}
	if err != nil {
		b.addError(name, err)
		return
	}
	b.addFile(name, data)
}

// addMessages adds the messages that a call returned, redacted.
func addMessages[M proto.Message](b *bundle, name string, items []M, err error) {
	var all []json.RawMessage
	if err == nil {
		all, err = encodeAll(items)
	}
	if err != nil {
		b.addError(name, err)
		return
	}
	b.addJSON(name, all)
}

// archiveFiles returns the bundle as tar.gz.
func (b *bundle) archiveFiles() ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, f := range b.files {
		header := &tar.Header{Name: path.Join(b.folder, f.name), Mode: 0o600, Size: int64(len(f.data)), ModTime: b.at}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), packed.Close())
	return out.Bytes(), err
}

func (a *app) supportBundleCommand() *cobra.Command {
	var file string
	var metrics, only []string
	var withMessages bool
	c := &cobra.Command{
		Use: "support-bundle", Short: "Collect data for troubleshooting in an archive, without secrets", Args: cobra.NoArgs,
		Long: `Support-bundle writes a tar.gz with the checks of windlass doctor, versions, regions, apps, deployments,
instances, rollouts and history of the workspace, and the metrics of the programs
named by --metrics. The archive lists calls that failed.

The archive has no values of secrets or variables, no arguments of programs and no logs. Keys, tokens
and passwords are removed from texts. Messages are left out, because they can quote the output
of instances. --messages includes them. Check the archive before you send it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at := time.Now().UTC()
			folder := "windlass-support-" + at.Format("20060102T150405Z")
			if file == "" {
				file = folder + ".tar.gz"
			}
			if err := folderExists(file); err != nil {
				return err
			}
			b := &bundle{folder: folder, at: at, redactor: redactor{messages: withMessages}, errors: []string{}}
			apps := a.collectFiles(cmd.Context(), b, only, metrics)
			data, err := b.archiveFiles()
			if err != nil {
				return fmt.Errorf("create the archive: %w", err)
			}
			if err := atomicfile.Write(file, data, 0o600); err != nil {
				return fmt.Errorf("write the archive: %w: give another place with --file", err)
			}
			a.infof("%s: %s, %s, %s failed", file, plural.Count(apps, "app"), plural.Count(len(b.files), "file"), plural.Count(len(b.errors), "call"))
			if a.output == "table" {
				return nil
			}
			return a.showValue(map[string]any{"file": file, "apps": apps, "files": len(b.files), "errors": b.errors})
		},
	}
	c.Flags().StringVar(&file, "file", "", "archive to write; replaced if it exists. Default: windlass-support-TIME.tar.gz in the current folder")
	c.Flags().StringArrayVar(&only, "app", nil, "app to collect; can be repeated. Default: the 100 that changed last")
	c.Flags().StringArrayVar(&metrics, "metrics", nil, "URL of a program's /metrics to collect; can be repeated")
	c.Flags().BoolVar(&withMessages, "messages", false, "include messages, which can quote the output of instances")
	return c
}

// folderExists returns an error if the folder for the file of --file does not exist. Callers check this
// before they collect data. A missing folder is not created, because its name may be mistyped.
func folderExists(file string) error {
	folder := filepath.Dir(file)
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--file=%s: the folder %s does not exist: create it first, or give another place", file, folder)
	case err != nil:
		return fmt.Errorf("--file=%s: look for the folder %s: %w: give another place", file, folder, err)
	case !info.IsDir():
		return fmt.Errorf("--file=%s: %s is not a folder: give another place", file, folder)
	}
	return nil
}

// collectFiles adds the files, and returns the number of apps in them.
func (a *app) collectFiles(ctx context.Context, b *bundle, only, metrics []string) int {
	connected := a.connect(ctx)
	// The key is removed from all texts.
	b.redactor.secret = a.target.APIKey
	b.addJSON("doctor.json", a.runChecks(ctx))
	about := map[string]any{"createdAt": b.at.Format(time.RFC3339), "windlass": a.Version, "server": a.target.Server, "messages": b.redactor.messages}
	apps := 0
	if connected != nil {
		b.addError("context", connected)
	} else {
		apps = a.collectWorkspace(ctx, b, only, about)
	}
	for i, from := range metrics {
		data, err := a.fetchMetrics(ctx, from)
		if err != nil {
			b.addError("metrics of "+from, err)
			continue
		}
		b.addFile(fmt.Sprintf("metrics/%d.txt", i+1), []byte(b.redactor.redactText("# from "+from+"\n"+string(data))))
	}
	b.addJSON("about.json", about)
	b.addJSON("errors.json", b.errors)
	return apps
}

// collectWorkspace adds the files about the workspace, and returns the number of apps in them.
func (a *app) collectWorkspace(ctx context.Context, b *bundle, only []string, about map[string]any) int {
	who, err := a.clients.access.WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
	if err != nil {
		b.addError("who am I", err)
		return 0
	}
	about["controlPlane"], about["workspace"] = who.ServerVersion, who.WorkspaceName
	regions, err := fetchPages(bundleItems, func(p *windlassv1.PageRequest) ([]*windlassv1.Region, *windlassv1.PageResponse, error) {
		r, err := a.clients.regions.ListRegions(ctx, &windlassv1.ListRegionsRequest{Page: p})
		return r.GetRegions(), r.GetPage(), err
	})
	addMessages(b, "regions.json", regions, err)
	apps := a.appsOfBundle(ctx, b, only, about)
	addMessages(b, "apps.json", apps, nil)
	for _, app := range apps {
		folder := path.Join("apps", app.Id)
		deployments, err := fetchPages(bundleHistory, func(p *windlassv1.PageRequest) ([]*windlassv1.Deployment, *windlassv1.PageResponse, error) {
			r, err := a.clients.deployments.ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{Page: p, App: app.Id})
			return r.GetDeployments(), r.GetPage(), err
		})
		addMessages(b, path.Join(folder, "deployments.json"), deployments, err)
		instances, err := fetchPages(bundleItems, func(p *windlassv1.PageRequest) ([]*windlassv1.Instance, *windlassv1.PageResponse, error) {
			r, err := a.clients.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{Page: p, App: app.Id, IncludeTerminated: true})
			return r.GetInstances(), r.GetPage(), err
		})
		addMessages(b, path.Join(folder, "instances.json"), instances, err)
		rollouts, err := fetchPages(bundleHistory, func(p *windlassv1.PageRequest) ([]*windlassv1.Rollout, *windlassv1.PageResponse, error) {
			r, err := a.clients.rollouts.ListRollouts(ctx, &windlassv1.ListRolloutsRequest{Page: p, App: app.Id})
			return r.GetRollouts(), r.GetPage(), err
		})
		addMessages(b, path.Join(folder, "rollouts.json"), rollouts, err)
		history, err := fetchPages(bundleHistory, func(p *windlassv1.PageRequest) ([]*windlassv1.HistoryEntry, *windlassv1.PageResponse, error) {
			r, err := a.clients.history.ListHistory(ctx, &windlassv1.ListHistoryRequest{Page: p, App: app.Id})
			return r.GetEntries(), r.GetPage(), err
		})
		addMessages(b, path.Join(folder, "history.json"), history, err)
	}
	return len(apps)
}

// appsOfBundle returns the apps named in only. Without names it returns the apps that changed last.
func (a *app) appsOfBundle(ctx context.Context, b *bundle, only []string, about map[string]any) []*windlassv1.App {
	if len(only) > 0 {
		var apps []*windlassv1.App
		for _, name := range only {
			r, err := a.clients.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: a.appPath(name)})
			if err != nil {
				b.addError("app "+name, err)
				continue
			}
			apps = append(apps, r.App)
		}
		return apps
	}
	apps, err := fetchPages(bundleItems, func(p *windlassv1.PageRequest) ([]*windlassv1.App, *windlassv1.PageResponse, error) {
		r, err := a.clients.apps.ListApps(ctx, &windlassv1.ListAppsRequest{Page: p})
		return r.GetApps(), r.GetPage(), err
	})
	if err != nil {
		b.addError("apps", err)
	}
	if len(apps) > bundleApps {
		slices.SortStableFunc(apps, func(x, y *windlassv1.App) int { return cmp.Compare(y.UpdatedAt, x.UpdatedAt) })
		about["appsLeftOut"] = len(apps) - bundleApps
		apps = apps[:bundleApps]
	}
	return apps
}

// fetchMetrics reads the metrics of a program.
func (a *app) fetchMetrics(ctx context.Context, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Timeout: doctorTimeout}).Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New("it answered " + answer.Status)
	}
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") && !strings.HasPrefix(kind, "application/openmetrics-text") {
		return nil, fmt.Errorf("its answer is %q, not metrics", kind)
	}
	return io.ReadAll(io.LimitReader(answer.Body, bundleMetrics))
}
