package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	adminKey = "dw_bench_admin_0123456789abcdefghijklmnop"
	agentKey = "agent_bench_0123456789abcdefghijklmnopqrs"
)

// environment is everything that runs: two upstreams, the gateway and its stdio child.
type environment struct {
	dir     string
	gateway *exec.Cmd
	others  []*exec.Cmd
	url     string        // of the gateway
	up, big string        // of the upstreams
	profile string        // file for a CPU profile
	used    time.Duration // CPU time of load generators that have ended
}

// newEnvironment builds the programs as they are shipped.
func newEnvironment(profile string) (*environment, error) {
	dir, err := os.MkdirTemp("", "doorward-bench-")
	if err != nil {
		return nil, err
	}
	e := &environment{dir: dir, profile: profile}
	log.Print("building")
	gateway := "./cmd/doorward"
	if profile != "" {
		gateway = "./test/bench/profiled"
	}
	for name, pkg := range map[string]string{"doorward": gateway, "loadgen": "./test/bench/loadgen", "upstream": "./test/bench/upstream"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return e, fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return e, nil
}

func (e *environment) bin(name string) string { return filepath.Join(e.dir, name) }

// close ends every process that was started and removes the folder.
func (e *environment) close() {
	for _, c := range append(slices.Clone(e.others), e.gateway) {
		if c != nil && c.Process != nil {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		}
	}
	os.RemoveAll(e.dir)
}

func (e *environment) launch(name string, env []string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(e.bin(name), args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := os.OpenFile(filepath.Join(e.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, cmd.Start()
}

// start starts the upstreams, registers and approves them, and starts the gateway anew, as one that has been set up is.
func (e *environment) start() error {
	for _, u := range []struct {
		tools string
		url   *string
	}{{"10", &e.up}, {"497", &e.big}} {
		addr, err := freeAddr()
		if err != nil {
			return err
		}
		cmd, err := e.launch("upstream", nil, "-http", addr, "-tools", u.tools)
		if err != nil {
			return err
		}
		e.others = append(e.others, cmd)
		*u.url = "http://" + addr + "/mcp"
	}
	if err := e.startGateway(); err != nil {
		return err
	}
	for name, body := range map[string]map[string]any{
		"bench": {"transport": "http", "server_url": e.up},
		"big":   {"transport": "http", "server_url": e.big},
		"pipe":  {"transport": "stdio", "command": e.bin("upstream"), "args": []string{"-stdio"}},
	} {
		if err := e.add(name, body); err != nil {
			return err
		}
	}
	return e.restart()
}

// restart starts the gateway anew on the same data.
func (e *environment) restart() error {
	_ = e.gateway.Process.Signal(syscall.SIGTERM)
	_ = e.gateway.Wait()
	return e.startGateway()
}

func (e *environment) startGateway() error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	e.url = "http://" + addr
	e.gateway, err = e.launch("doorward", []string{"DOORWARD_BOOTSTRAP_ADMIN_KEY=" + adminKey, "DOORWARD_BOOTSTRAP_AGENT_KEY=" + agentKey, "BENCH_PROFILE=" + e.profile},
		"serve", "--data", filepath.Join(e.dir, "data"), "--listen", addr)
	if err != nil {
		return err
	}
	for range 300 {
		if r, err := http.Get(e.url + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(e.bin("doorward") + ".log")
	return fmt.Errorf("the gateway is not ready after 30 s\n%s", text)
}

// add registers a server and admits all its tools under ALLOW.
func (e *environment) add(name string, body map[string]any) error {
	body["name"] = name
	var server struct{ ID string }
	if err := e.rest("POST", "", body, &server); err != nil {
		return err
	}
	var scan struct{ Status, Error string }
	for range 20 {
		if err := e.rest("POST", "/"+server.ID+"/scan", nil, &scan); err != nil {
			return err
		}
		if scan.Status == "ok" {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	var list struct{ Tools []struct{ ID string } }
	if err := e.rest("GET", "/"+server.ID+"/tools", nil, &list); err != nil {
		return err
	}
	choices := []map[string]string{}
	for _, t := range list.Tools {
		choices = append(choices, map[string]string{"tool_id": t.ID, "action": "ALLOW"})
	}
	if len(choices) == 0 {
		return fmt.Errorf("scan of %s found nothing: %s", name, scan.Error)
	}
	return e.rest("POST", "/"+server.ID+"/approve", map[string]any{"tools": choices}, nil)
}

func (e *environment) rest(method, path string, body, out any) error {
	var b []byte
	if body != nil {
		b, _ = json.Marshal(body)
	}
	req, err := http.NewRequest(method, e.url+"/api/v1/mcp/servers"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		return errors.Join(err, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, answer))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// memory is what the gateway holds now, in MiB.
func (e *environment) memory() float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.gateway.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	return 0
}

// idleMemory waits until the servers are connected and the start is over.
func (e *environment) idleMemory() (float64, error) {
	for _, server := range []string{"bench", "big", "pipe"} {
		if out, err := e.loadgen("ready", "-url", e.url+"/mcp/"+server, "-timeout", "30s"); err != nil {
			return 0, fmt.Errorf("%s: %w\n%s", server, err, out)
		}
	}
	time.Sleep(3 * time.Second)
	return e.memory(), nil
}

// loadgen runs the load generator as a process of its own; it carries the key also to the upstream, which does not look.
func (e *environment) loadgen(args ...string) ([]byte, error) {
	cmd := exec.Command(e.bin("loadgen"), append(args, "-H", "Authorization: Bearer "+agentKey)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if cmd.ProcessState != nil {
		e.used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return out, err
}

// tick is the unit of CPU times in /proc.
const tick = 10 * time.Millisecond

// cpuTimes are the CPU time of the whole machine so far, and the part that is ours.
func (e *environment) cpuTimes() (all, ours time.Duration) {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(first) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i != 4 && i != 5 && i < 9 { // not idle, iowait, guest
			all += time.Duration(n) * tick
		}
	}
	ours = e.used
	for _, c := range append(slices.Clone(e.others), e.gateway) {
		ours += processTime(c.Process.Pid)
	}
	return all, ours
}

// processTime is the CPU time of a process and of its children, running and reaped.
func processTime(pid int) time.Duration {
	var sum time.Duration
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	for i, f := range strings.Fields(rest) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i >= 11 && i <= 14 {
			sum += time.Duration(n) * tick
		}
	}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for _, c := range strings.Fields(string(list)) {
			child, _ := strconv.Atoi(c)
			sum += processTime(child)
		}
	}
	return sum
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
