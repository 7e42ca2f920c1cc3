package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/version"
	"github.com/tensorgrid/tensorgrid/nodeagent/login"
)

// serveLogin is gnoded --login. As with an agent, root is given up before a key is read.
func serveLogin(ctx context.Context, o options, c *conf.Config, log *slog.Logger) error {
	name := o.node
	if name == "" {
		_, short, err := hostNames()
		if err != nil {
			return err
		}
		name = short
	}
	if len(c.LoginSocket) > maxSocketPath {
		return fmt.Errorf("LoginSocket=%s is longer than the kernel's %d bytes", c.LoginSocket, maxSocketPath)
	}
	p := paths{spool: o.spool, socket: c.LoginSocket}
	if p.spool == "" {
		p.spool = conf.NodePath(c.SpoolDir, name)
	}
	p.state = filepath.Join(p.spool, loginFolder)
	to, err := whoToBe(o.allowRoot, c.AgentUser)
	if err != nil {
		return err
	}
	lock, err := claim(p, to)
	if err != nil {
		return err
	}
	defer lock.Close()
	users, err := listen(p.socket, to, true)
	if err != nil {
		return err
	}
	defer users.Close()
	if to != nil {
		if err := to.become(); err != nil {
			return err
		}
	}
	home, id, err := identityOf(c.TLSDir, filepath.Join(p.state, tlsFolder), name, authn.RoleLogin)
	if err != nil {
		return err
	}
	if !slices.Contains(c.LoginNodes, name) {
		log.Warn("LoginNodes does not list this host: the controllers refuse its tokens until their grid.conf does", "login", name)
	}
	s := &login.Server{
		Identity: id, Now: fault.Now, Rand: rand.Reader, Log: log,
		Users: userName(authn.NewAccounts("/etc/passwd", "/etc/group", fault.Now)),
	}
	log.Info("gnoded serves a login host", "login", name, "socket", p.socket, "version", version.Version, "uid", os.Geteuid())
	return alongside(ctx, renewer(home, id, c.Controllers, log).Run, func(ctx context.Context) error { return s.Serve(ctx, users) })
}

// userName finds the name of a uid. Whoever asks may have none: processes of containers have such uids.
func userName(accounts *authn.Accounts) func(uid uint32) (string, error) {
	return func(uid uint32) (string, error) {
		a, err := accounts.ByUID(uid)
		if err != nil {
			return "", err
		}
		return a.User, nil
	}
}
