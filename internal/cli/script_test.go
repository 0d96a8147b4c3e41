package cli_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"doorward.dev/doorward/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"doorward": func() { os.Exit(cli.Main(os.Args[1:])) },
	})
}

// Each script runs the real program in a folder and with an address of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			addr := l.Addr().String()
			if err := l.Close(); err != nil {
				return err
			}
			e.Setenv("ADDR", addr)
			e.Setenv("DOORWARD_LISTEN", addr)
			e.Setenv("DOORWARD_URL", "http://"+addr)
			e.Setenv("DOORWARD_DATA", e.WorkDir+"/data")
			e.Setenv("DOORWARD_BOOTSTRAP_ADMIN_KEY", "dw_script_admin_key_0123456789")
			e.Setenv("DOORWARD_BOOTSTRAP_AGENT_KEY", "agent_script_key_0123456789")
			e.Setenv("DOORWARD_KEY", "dw_script_admin_key_0123456789")
			e.Setenv("LC_ALL", "C")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// ready waits until the Doorward of the script serves.
			"ready": func(ts *testscript.TestScript, neg bool, args []string) {
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
					res, err := http.Get(ts.Getenv("DOORWARD_URL") + "/readyz")
					if err == nil {
						res.Body.Close()
						if res.StatusCode == http.StatusOK {
							return
						}
						err = fmt.Errorf("status %d", res.StatusCode)
					}
					if time.Now().After(deadline) {
						ts.Fatalf("not ready: %v", err)
					}
				}
			},
			// call calls a tool as the agent of the script: call TOOL ARGUMENTS.
			"call": func(ts *testscript.TestScript, neg bool, args []string) {
				if len(args) != 2 {
					ts.Fatalf("usage: call TOOL ARGUMENTS")
				}
				req, err := http.NewRequest(http.MethodPost, ts.Getenv("DOORWARD_URL")+"/tools/call", strings.NewReader(fmt.Sprintf(`{"name":%q,"arguments":%s}`, args[0], args[1])))
				ts.Check(err)
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+ts.Getenv("DOORWARD_BOOTSTRAP_AGENT_KEY"))
				res, err := http.DefaultClient.Do(req)
				ts.Check(err)
				res.Body.Close()
				if (res.StatusCode != http.StatusOK) != neg {
					ts.Fatalf("status %d", res.StatusCode)
				}
			},
			// eventually runs a command again until it succeeds and prints the given text.
			"eventually": func(ts *testscript.TestScript, neg bool, args []string) {
				if len(args) < 2 {
					ts.Fatalf("usage: eventually TEXT COMMAND ARGS…")
				}
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
					err := ts.Exec(args[1], args[2:]...)
					if out := ts.ReadFile("stdout"); err == nil && strings.Contains(out, args[0]) {
						return
					}
					if time.Now().After(deadline) {
						ts.Fatalf("never printed %q: %v\n%s", args[0], err, ts.ReadFile("stdout"))
					}
				}
			},
		},
	})
}
