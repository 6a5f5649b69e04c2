package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/seal"
)

// doctorFlags are those of `serve` that name what it depends on.
type doctorFlags struct {
	databaseFlags
	KeyFile        string               `help:"File with the keyset. Default: not checked." type:"path" env:"WINDLASS_KEY_FILE"`
	RestateIngress []string             `help:"URLs of Restate's ingress, separated by commas." required:"" env:"WINDLASS_RESTATE_INGRESS"`
	RestateAdmin   []string             `help:"URLs of Restate's admin API, separated by commas." required:"" env:"WINDLASS_RESTATE_ADMIN"`
	Restate        certfile.RemoteFlags `embed:"" prefix:"restate-" envprefix:"WINDLASS_RESTATE_"`
	Output         string               `short:"o" help:"${enum}." enum:"table,json" default:"table"`
}

// These are the results of a check.
const (
	resultOK   = "ok"
	resultWarn = "warn"
	resultFail = "fail"
)

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	// Fix describes what the user can do about the result.
	Fix string `json:"fix,omitempty"`
}

const (
	// doctorTimeout bounds the checks of one service.
	doctorTimeout = 15 * time.Second
	// Leases and credentials tolerate clocks that differ by a few seconds.
	skewWarning = 5 * time.Second
	skewFailure = time.Minute
)

var errCheckFailed = errors.New("a check failed: see the fix above")

// run checks what the flags name, and prints the findings.
func (f doctorFlags) run(ctx context.Context, out io.Writer, log *slog.Logger) error {
	files := certfile.NewFiles(log)
	findings := f.checkKeyFile()
	findings = append(findings, f.checkDatabase(ctx, files)...)
	restate, err := f.checkRestate(ctx, files)
	if err != nil {
		return err
	}
	findings = append(findings, restate...)
	if err := showFindings(out, findings, f.Output); err != nil {
		return err
	}
	for _, x := range findings {
		if x.Result == resultFail {
			return errCheckFailed
		}
	}
	return nil
}

func showFindings(out io.Writer, findings []finding, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string][]finding{"checks": findings})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CHECK\tRESULT\tDETAIL") // flushed below
	for _, x := range findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", x.Check, x.Result, x.Detail)
		if x.Fix != "" {
			_, _ = fmt.Fprintf(w, "\t\tfix: %s\n", x.Fix)
		}
	}
	return w.Flush()
}

func (f doctorFlags) checkKeyFile() []finding {
	if f.KeyFile == "" {
		return nil
	}
	box, err := seal.Load(f.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []finding{{"keyset", resultFail, f.KeyFile + " does not exist", "Mount the keyset of the other replicas, or make the first one with `controlplane keyset create`."}}
	case err != nil:
		return []finding{{"keyset", resultFail, err.Error(), "Correct the file or its mode: docs/guides/control-plane.md#keyset."}}
	}
	return []finding{{"keyset", resultOK, fmt.Sprintf("%d keys", len(box.Keys())), ""}}
}

func (f doctorFlags) checkDatabase(ctx context.Context, files *certfile.Files) []finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	all, err := mysql.Examine(ctx, f.storeConfig(files))
	if err != nil {
		return []finding{{"database", resultFail, err.Error(), "Correct --mysql-dsn."}}
	}
	return judgeDatabase(all)
}

// judgeDatabase returns the findings about the addresses of the database, and then those about the database as a whole.
func judgeDatabase(all []mysql.Examination) []finding {
	var findings []finding
	var one *mysql.Examination // the address that serve would use
	for i, e := range all {
		x := finding{Check: "database " + e.Address, Result: resultOK, Detail: e.Server + ", " + tlsText(e.Cipher)}
		switch {
		case e.Error != nil:
			x.Result, x.Detail, x.Fix = resultFail, e.Error.Error(), databaseFix(e.Error)
			if len(all) > 1 {
				x.Result = resultWarn
			}
		case e.ReadOnly:
			x.Result, x.Detail, x.Fix = resultWarn, x.Detail+", read-only", "It is used once it accepts writes."
		case one == nil:
			one = &all[i]
		}
		findings = append(findings, x)
	}
	if one == nil {
		return append(findings, finding{"database", resultFail, "no address accepts writes", "Start a server of --mysql-dsn, or name one that is not read-only."})
	}
	return append(findings, judgeSchema(*one), judgeRights(*one), judgeClock(one.Skew))
}

func tlsText(version string) string {
	if version == "" {
		return "no TLS"
	}
	return version
}

func databaseFix(err error) string {
	if mysql.IsUnavailable(err) {
		return "Start the server, or correct its address, DNS or the network to it."
	}
	return "Correct the account, the database's name or the TLS of --mysql-dsn."
}

func judgeSchema(e mysql.Examination) finding {
	x := finding{Check: "schema", Result: resultOK, Detail: fmt.Sprintf("version %d, as this program's", e.Schema)}
	switch {
	case e.Schema == 0:
		x.Detail = fmt.Sprintf("none: the first start makes version %d", e.Known)
	case e.Schema < e.Known:
		x.Detail = fmt.Sprintf("version %d: the next start makes version %d of it", e.Schema, e.Known)
	case e.Schema > e.Known:
		x.Result, x.Detail = resultWarn, fmt.Sprintf("version %d, and this program's is %d", e.Schema, e.Known)
		x.Fix = "A newer release uses this database. Upgrade this program: it may go on for one release."
	}
	return x
}

func judgeRights(e mysql.Examination) finding {
	if len(e.Missing) == 0 {
		return finding{"rights", resultOK, "the account has all that is needed on the database", ""}
	}
	return finding{
		"rights", resultWarn, "the account has no " + strings.Join(e.Missing, ", ") + " by a grant of its own",
		"GRANT ALL ON the database to the account. Ignore this if a role has these rights.",
	}
}

func judgeClock(skew time.Duration) finding {
	x := finding{Check: "clock", Result: resultOK, Detail: "equals that of the database"}
	ahead := skew.Abs()
	switch {
	case ahead >= skewFailure:
		x.Result = resultFail
	case ahead >= skewWarning:
		x.Result = resultWarn
	default:
		return x
	}
	side := "behind"
	if skew < 0 {
		side = "ahead of"
	}
	x.Detail = fmt.Sprintf("this machine is %s the database by %s", side, ahead.Round(time.Second))
	x.Fix = "Synchronise both clocks with NTP, because they decide when leases, keys and certificates end."
	return x
}

func (f doctorFlags) checkRestate(ctx context.Context, files *certfile.Files) ([]finding, error) {
	remote, err := f.Restate.Transport("restate-", files)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	remote(transport)
	client := &http.Client{Timeout: doctorTimeout, Transport: transport}
	findings := checkURLs(ctx, client, "restate ingress", "/restate/health", f.RestateIngress)
	return append(findings, checkURLs(ctx, client, "restate admin", "/health", f.RestateAdmin)...), nil
}

// checkURLs checks that the URLs answer with status 200. One of several is enough.
func checkURLs(ctx context.Context, client *http.Client, name, path string, urls []string) []finding {
	var findings []finding
	up := 0
	for _, raw := range urls {
		u, err := url.Parse(strings.TrimSpace(raw))
		if err == nil && u.Host == "" {
			err = fmt.Errorf("%q is not a URL such as http://127.0.0.1:8080", raw)
		}
		x := finding{Check: name, Result: resultOK}
		if err == nil {
			x.Detail = u.Redacted()
			err = requireAnswer(ctx, client, u.JoinPath(path).String())
		}
		if err != nil {
			x.Result, x.Detail, x.Fix = resultWarn, err.Error(), "Start this node of Restate, or correct its URL, DNS, TLS or the network to it."
		} else {
			up++
		}
		findings = append(findings, x)
	}
	if up == 0 {
		for i := range findings {
			findings[i].Result = resultFail
		}
	}
	return findings
}

func requireAnswer(ctx context.Context, client *http.Client, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", req.URL.Redacted(), resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}
