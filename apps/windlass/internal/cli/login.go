package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/apps/windlass/internal/signin"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxTokenFile bounds a file with the token of a CI, in bytes.
const maxTokenFile = 64 << 10

// ssoFlags choose how login gets its credential.
type ssoFlags struct {
	sso, device bool
	tokenFile   string
	workspace   string
}

func (f *ssoFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.sso, "sso", false, "sign in at the control plane's issuer with a browser, instead of an API key")
	c.Flags().BoolVar(&f.device, "device", false, "with --sso: show a code to enter on another device, for machines without a browser")
	c.Flags().StringVar(&f.tokenFile, "federated-token-file", "", "file with an OpenID Connect token of a CI, to trade for a token of the control plane. Default: the token of $"+clientconfig.EnvFederatedToken+", if it is set")
	c.Flags().StringVar(&f.workspace, "workspace", "", "workspace to sign in to, if you have a role in several; @platform: as operator")
}

// checkTogether returns an error for flags that do not go together.
func (f *ssoFlags) checkTogether() error {
	switch {
	case f.sso && f.tokenFile != "":
		return errors.New("--sso is for people, and --federated-token-file for services: use one of the two")
	case f.device && !f.sso:
		return errors.New("--device needs --sso")
	}
	return nil
}

// getCredential gets the credential for the target: a token of a member, or an API key.
func (a *app) getCredential(ctx context.Context, f ssoFlags, target *clientconfig.Context) error {
	if err := f.checkTogether(); err != nil {
		return err
	}
	federated := f.tokenFile != "" || !f.sso && a.Getenv(clientconfig.EnvFederatedToken) != ""
	if !f.sso && !federated {
		if f.workspace != "" {
			return errors.New("--workspace is for --sso and --federated-token-file: an API key belongs to one workspace")
		}
		key, err := a.readSecret("API key: ")
		target.APIKey = key
		return err
	}
	if _, err := a.newClientsFor(*target); err != nil { // it sets a.http
		return err
	}
	client := signin.Client{HTTP: a.http, Server: target.Server}
	var token signin.Token
	var err error
	switch {
	case federated:
		var text string
		if text, err = a.federatedToken(f.tokenFile); err == nil {
			token, err = client.Federated(ctx, text, f.workspace)
		}
	case f.device:
		token, err = client.Device(ctx, f.workspace, a.showDevice)
	default:
		token, err = client.Browser(ctx, f.workspace, a.openBrowser)
	}
	if err != nil {
		return err
	}
	if token.Value == "" {
		return errors.New("the control plane answered without a token")
	}
	keepToken(target, token, time.Now())
	return nil
}

// keepToken stores the token in the context.
func keepToken(c *clientconfig.Context, token signin.Token, at time.Time) {
	c.APIKey = token.Value
	c.ExpiresAt, c.RenewAt = at.Add(token.ExpiresIn).UnixMilli(), at.Add(token.RenewAfter).UnixMilli()
}

func (a *app) federatedToken(path string) (string, error) {
	if path == "" {
		return strings.TrimSpace(a.Getenv(clientconfig.EnvFederatedToken)), nil
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxTokenFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxTokenFile)
	}
	if err != nil {
		return "", fmt.Errorf("--federated-token-file: %w", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--federated-token-file: %w", err)
	}
	if text := strings.TrimSpace(string(data)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("--federated-token-file: %s is empty", path)
}

func (a *app) showDevice(d signin.Device) {
	a.infof("Open %s and enter the code %s", d.URL, d.UserCode)
	if d.Complete != "" {
		a.infof("or open      %s", d.Complete)
	}
	a.infof("The code works for %s.", d.ExpiresIn.Round(time.Minute))
}

// openBrowser shows the URL with the confirmation, and opens it if a person uses the terminal.
func (a *app) openBrowser(url, confirmation string) {
	a.infof("Open this address in a browser of this machine to sign in (without one, use --device):\n%s\nConfirm the sign-in there if the page shows the code %s.", url, confirmation)
	open := a.OpenBrowser
	if open == nil && a.isInteractive() {
		open = openURL
	}
	if open == nil {
		return
	}
	if err := open(url); err != nil {
		a.infof("note: the browser could not be opened: %v", err)
	}
}

// openURL opens the URL in the person's browser. It does not wait for the browser.
func openURL(url string) error {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	c := exec.Command(name, args...)
	if err := c.Start(); err != nil {
		return err
	}
	go func() { _ = c.Wait() }() // what the browser does is no error of the login
	return nil
}

// renewToken renews the token of the target if it is time. It returns an error if the token has expired, or if the new
// token could not be stored. If the control plane does not renew the token, that is no error.
func (a *app) renewToken(ctx context.Context, path string) error {
	now := time.Now().UnixMilli()
	if !strings.HasPrefix(a.target.APIKey, signin.TokenPrefix) || a.target.RenewAt == 0 || now < a.target.RenewAt {
		return nil
	}
	if now >= a.target.ExpiresAt {
		return fmt.Errorf("the sign-in of context %s has expired: run `windlass login` again", a.target.Name)
	}
	old := a.target.APIKey
	token, err := signin.Client{HTTP: a.http, Server: a.target.Server}.Renew(ctx, old)
	if err != nil || token.Value == "" {
		return nil //nolint:nilerr // the token still works, or the command's own call says why not
	}
	a.target.APIKey = token.Value
	err = clientconfig.Update(ctx, path, func(f *clientconfig.File) error {
		c, ok := f.Get(a.target.Name)
		if !ok || c.APIKey != old {
			return nil // another command logged in or out meanwhile
		}
		keepToken(&c, token, time.Now())
		f.Put(c)
		return nil
	})
	if err != nil {
		// The earlier value in the file works for a minute more only.
		return fmt.Errorf("store the renewed sign-in: %w", err)
	}
	return nil
}

func (a *app) logoutCommand() *cobra.Command {
	var everywhere bool
	c := &cobra.Command{
		Use: "logout", Short: "Remove the credential of a context, and end its sign-in", Args: cobra.NoArgs,
		Long: `Logout removes the context with its credential from the file. A sign-in with --sso or a federated token ends at the
control plane, too. An API key stays valid: "windlass key revoke" ends it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := a.configPath()
			if err != nil {
				return err
			}
			file, err := clientconfig.Load(path)
			if err != nil {
				return err
			}
			target, err := file.Resolve(a.context, a.Getenv)
			if err != nil {
				return err
			}
			isToken := strings.HasPrefix(target.APIKey, signin.TokenPrefix)
			if everywhere && !isToken {
				return errors.New("--everywhere ends the sign-ins of a member, and this context has an API key")
			}
			if isToken {
				if _, err := a.newClientsFor(target); err != nil {
					return err
				}
				err := signin.Client{HTTP: a.http, Server: target.Server}.SignOut(cmd.Context(), target.APIKey, everywhere)
				if err != nil && !signin.IsOver(err) {
					return err
				}
			}
			removed := false
			err = clientconfig.Update(cmd.Context(), path, func(f *clientconfig.File) error {
				removed = f.Remove(target.Name)
				return nil
			})
			if err != nil {
				return err
			}
			if !removed {
				return a.showLocal(map[string]any{"context": target.Name}, "no context is stored in %s", path)
			}
			return a.showLocal(map[string]any{"context": target.Name, "sessionEnded": isToken}, "context %s is removed from %s", target.Name, path)
		},
	}
	c.Flags().BoolVar(&everywhere, "everywhere", false, "end all sign-ins of this member, in browsers, too")
	return c
}

func (a *app) showLocal(value map[string]any, format string, args ...any) error {
	if a.output == "table" {
		a.infof(format, args...)
		return nil
	}
	return a.showValue(value)
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show the key or the member that commands call with", Args: cobra.NoArgs,
		RunE: a.run(func(ctx context.Context, _ []string) error {
			who, err := a.clients.access.WhoAmI(ctx, &windlassv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			return a.showMessage(who, func(w *tabwriter.Writer) {
				if m := who.GetMember(); m != nil {
					kind := "person"
					if m.Service {
						kind = "service"
					}
					writeRow(w, "MEMBER", m.Name)
					writeRow(w, "KIND", kind)
					writeRow(w, "SUBJECT", m.Subject)
					writeRow(w, "ISSUER", m.Issuer)
					writeRow(w, "RULES", strings.Join(m.Rules, ", "))
				} else {
					writeRow(w, "KEY", who.Key.GetName())
				}
				writeRow(w, "ROLE", enumText(who.Key.GetRole(), "ROLE_"))
				writeRow(w, "WORKSPACE", orDash(who.WorkspaceName))
				writeRow(w, "SERVER", a.target.Server)
				switch {
				case who.Key.GetExpiresAt() != 0:
					writeRow(w, "EXPIRES", timeText(who.Key.GetExpiresAt()))
				case a.target.ExpiresAt != 0:
					writeRow(w, "SIGNED IN UNTIL", timeText(a.target.ExpiresAt)+", longer with further commands")
				}
			})
		}),
	}
}
