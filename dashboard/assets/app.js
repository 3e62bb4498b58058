/* What the browser does by itself: the URL of what is shown, the cells of grids, saving of figures. */
(function () {
  "use strict";

  const noUpdate = () => window.dash_clientside.no_update;

  /* Values of controls by their ids, from the argument groups of a callback with ALL. */
  function controls() {
    const found = {};
    (window.dash_clientside.callback_context.inputs_list || []).flat().forEach((item) => {
      if (item && item.id && item.id.name) found[item.id.name] = item.value;
    });
    return found;
  }

  function withValues(values) {
    const query = new URLSearchParams(window.location.search);
    Object.entries(values).forEach(([name, value]) => {
      query.delete(name);
      (Array.isArray(value) ? value : [value]).forEach((one) => {
        if (one !== null && one !== undefined && one !== "") query.append(name, one);
      });
    });
    const text = query.toString();
    return text ? "?" + text : "";
  }

  /* Controls call back when they come into being, too: only what somebody changed since then goes into the URL. */
  let shown = { path: "", values: {} };
  function changed(values) {
    if (shown.path !== window.location.pathname) shown = { path: window.location.pathname, values: {} };
    const found = {};
    Object.entries(values).forEach(([name, value]) => {
      if (name in shown.values && JSON.stringify(shown.values[name]) !== JSON.stringify(value)) found[name] = value;
      shown.values[name] = value;
    });
    return found;
  }

  /* The page comes anew with the URL: whoever used the keyboard stays where they were. */
  function keepFocus() {
    const id = document.activeElement && document.activeElement.id;
    if (!id) return;
    let tries = 0;
    const timer = setInterval(() => {
      const again = document.getElementById(id);
      tries += 1;
      if (document.activeElement === document.body && again) again.focus({ preventScroll: true });
      if (tries > 40 || (again && document.activeElement === again && tries > 10)) clearInterval(timer);
    }, 50);
  }

  function open(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fusionscope: {
      titled: (title) => {
        if (title) document.title = title;
        document.querySelectorAll(".fs-nav-link").forEach((link) => {
          const path = new URL(link.href).pathname;
          const here = window.location.pathname;
          const current = path === "/" ? here === "/" || here.startsWith("/run/") : here.startsWith(path);
          if (current) link.setAttribute("aria-current", "page");
          else link.removeAttribute("aria-current");
        });
        return noUpdate();
      },
      sync: () => {
        const search = withValues(controls());
        if (search !== window.location.search) {
          window.history.replaceState(window.history.state, "", window.location.pathname + search + window.location.hash);
        }
        return noUpdate();
      },
      go: () => {
        const values = changed(controls());
        let path = window.location.pathname;
        if ("run" in values) {
          path = values.run ? "/estimate/" + encodeURIComponent(values.run) : "/estimate";
          delete values.run;
        }
        const search = withValues(values);
        const same = new URLSearchParams(search).toString() === new URLSearchParams(window.location.search).toString();
        if (same && path === window.location.pathname) return [noUpdate(), noUpdate()];
        keepFocus();
        return [path, search];
      },
      quickFilter: (text, options) => Object.assign({}, options, { quickFilterText: text || "" }),
      step: (clicks, data, value) => {
        const trigger = window.dash_clientside.callback_context.triggered_id;
        if (!trigger || !clicks.some(Boolean) || !data.length) return noUpdate();
        const now = data.findIndex((option) => option.value === value);
        const next = now < 0 ? (trigger.by > 0 ? 0 : data.length - 1) : now + trigger.by;
        return data[Math.min(Math.max(next, 0), data.length - 1)].value;
      },
    },
  });

  /* Numbers of grids: grouped thousands, as many decimals as the column has. */
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  functions.FS = {
    number: (value, decimals) =>
      value === null || value === undefined || value === ""
        ? ""
        : Number(value).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
  };

  const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  cells.FsRun = function (props) {
    const href = "/run/" + encodeURIComponent(props.data.Id);
    return React.createElement("a", { href: href, className: "fs-link", "data-open": "" }, props.value);
  };
  function badges(kind) {
    return (props) =>
      React.createElement(
        "span",
        { className: "fs-badges" },
        (props.value || "")
          .split(", ")
          .filter(Boolean)
          .map((text) => React.createElement("span", { key: text, className: "fs-badge " + kind }, text))
      );
  }
  cells.FsLabels = badges("fs-badge-label");
  cells.FsTags = badges("");
  cells.FsStatus = function (props) {
    const name = String(props.value).replace(/ /g, "-");
    return React.createElement("span", { className: "fs-badge fs-status fs-status-" + name }, props.value);
  };

  /* Plotly is the largest script, and reading it takes longest: it is fetched beside the others, and read while the
   * server makes a page with figures. On a page without figures it is read some time after, for the next page.
   * A promise in the place of plotly is what Dash's own loader waits for. */
  const PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  const hasFigures = () => /^\/(run|compare|estimate|accuracy)(\/|$)/.test(window.location.pathname);

  function fetchPlotly() {
    const link = document.createElement("link");
    Object.assign(link, { rel: "preload", as: "script", href: PLOTLY });
    document.head.appendChild(link);
  }

  function load(url) {
    const script = document.createElement("script");
    script.src = url;
    script.async = true;
    document.head.appendChild(script);
    return new Promise((resolve, reject) => {
      script.onload = () => resolve(window.Plotly);
      script.onerror = reject;
    });
  }

  function readPlotly() {
    if (window.Plotly) return;
    // Another version of Dash may serve it elsewhere, and says where.
    window.Plotly = load(PLOTLY).catch(() => load(window._dashPlotlyJSURL));
  }

  if (hasFigures()) fetchPlotly();
  /* Called by Dash before each request to the server: after the first of a page, the browser has nothing to do. */
  window.fusionscopeAsks = () => {
    window.fusionscopeAsks = () => {};
    setTimeout(readPlotly, hasFigures() ? 0 : 2500);
  };

  function say(button, text) {
    const before = button.textContent;
    button.textContent = text;
    setTimeout(() => (button.textContent = before), 1500);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-open]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
      event.preventDefault();
      open(link.getAttribute("href"));
      return;
    }
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      navigator.clipboard.writeText(copy.dataset.copy).then(
        () => say(copy, "Copied"),
        () => say(copy, "Not allowed")
      );
    }
    const button = event.target.closest("button[data-format]");
    if (button) {
      const graph = button.closest("figure").querySelector(".js-plotly-plot");
      const size = { width: graph.offsetWidth, height: graph.offsetHeight };
      window.Plotly.downloadImage(graph, {
        format: button.dataset.format,
        filename: button.dataset.file.replace(/[^\w.-]+/g, "_"),
        scale: button.dataset.format === "png" ? 2 : 1,
        ...size,
      });
    }
  });
})();
